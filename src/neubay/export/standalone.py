"""A trained policy that needs NumPy alone. Copy this file and `policy.npz` anywhere:

    from policy import load

    policy = load("the folder with policy.npz")
    action, state = policy.predict(observation)                    # the first step of an episode
    action, state = policy.predict(observation, state, reward=r)   # every later one

Observations, rewards and actions are in the units of the plant, as in the data. `policy.about` says
what the policy was trained on; `card.md` says it in words.
"""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

LARGEST_INPUT = 10.0  # standard deviations beyond which an input is not told apart
LOG_SIGMA_RANGE = (-5.0, 2.0)


class PolicyState(NamedTuple):
    """What the policy carries between steps, for a batch of episodes."""

    memory: np.ndarray  # (batch, layers, 2, units): real and imaginary halves
    last_action: np.ndarray  # (batch, actions), scaled to [-1, 1] or one-hot
    steps: int


def load(folder: "str | Path" = ".") -> "Policy":
    """The policy in a folder, or in an npz file."""
    path = Path(folder)
    path = path / "policy.npz" if path.is_dir() else path
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    try:
        return Policy(arrays, json.loads(arrays.pop("about").tobytes()))
    except KeyError as missing:
        raise ValueError(f"{path}: has no {missing}; it is damaged, or no export") from None
    except (ValueError, TypeError) as wrong:
        raise ValueError(f"{path}: {wrong}; it is damaged, or no export") from None


class Policy:
    """Acts on one observation or on a batch of them."""

    def __init__(self, arrays: "dict[str, np.ndarray]", about: "dict[str, Any]") -> None:
        self.arrays, self.about = arrays, about
        self.state_size = int(about["state_size"])
        self.discrete = "discrete" in about["actions"]
        if self.discrete:
            self.action_size = int(about["actions"]["discrete"])
        else:
            self._low, self._high = (
                np.asarray(about["actions"][name], np.float64) for name in ("low", "high")
            )
            self.action_size = len(self._low)
        self._blocks = about["memory_layers"] if about["memory"] != "none" else 0
        self._units = about["memory_size"] if self._blocks else 0
        for name, shape in self._shapes().items():
            if arrays[name].shape != shape:
                raise ValueError(f"'{name}' has the shape {arrays[name].shape}, not {shape}")
            if not np.isfinite(arrays[name]).all():
                raise ValueError(f"'{name}' has a value that is not finite")

    def _shapes(self) -> "dict[str, tuple[int, ...]]":
        """The arrays of the network."""
        kind, width, units = self.about["memory"], self.about["agent"]["width"], self._units
        inputs, features = self.state_size + self.action_size + 1, self.state_size
        shapes: dict[str, tuple[int, ...]] = {}

        def linear(name: str, into: int, out: int) -> None:
            shapes.update({f"{name}_weight": (into, out), f"{name}_bias": (out,)})

        def norm(name: str) -> None:
            shapes.update({f"{name}_scale": (width,), f"{name}_shift": (width,)})

        if self.about["agent"]["standardise"]:
            shapes.update(input_mean=(inputs,), input_std=(inputs,))
        if kind != "none":
            linear("project", inputs, width)
            norm("project")
            features = width + (self.state_size if kind == "gated" else 0)
        if kind == "gated":
            shapes["gate"] = (width,)
        for block in (f"block{i}" for i in range(self._blocks)):
            norm(block)
            shapes.update({f"{block}_decay": (2, units), f"{block}_turn": (2, units)})
            shapes.update({f"{block}_b": (width, 2 * units), f"{block}_c": (2 * units, width)})
            shapes[f"{block}_d"] = (width,)
            linear(f"{block}_gate", width, 2 * width)
        for layer in range(self.about["head_depth"]):
            linear(f"head{layer}", features, width)
            norm(f"head{layer}")
            features = width
        outputs = {
            "tanh-gaussian": 2 * self.action_size,  # mean, log sigma
            "greedy": 1 + self.action_size,  # value, advantages
            "categorical": self.action_size,
        }
        linear("out", features, outputs[self.about["distribution"]])
        return shapes

    def predict(
        self,
        observation: np.ndarray,
        state: "PolicyState | None" = None,
        episode_start: "bool | np.ndarray | None" = None,
        deterministic: bool = True,
        *,
        reward: "float | np.ndarray | None" = None,
        seed: int = 0,
    ) -> "tuple[np.ndarray | np.integer, PolicyState]":
        """The action at `observation`, and the state to pass in next time.

        Args:
            observation: (s,) or (batch, s).
            state: what the last call returned; none at the beginning.
            episode_start: where an episode starts; memory is cleared there. By default everywhere
                when there is no state, and nowhere otherwise.
            deterministic: the mode of the policy, or a sample of it.
            reward: the reward of the last action; needed where no episode starts.
            seed: decides, with the step, the samples of a stochastic policy.
        """
        states = np.atleast_2d(np.asarray(observation, np.float32))
        if states.shape[1:] != (self.state_size,):
            raise ValueError(
                f"an observation has {self.state_size} values, got shape {np.shape(observation)}"
            )
        _refuse_nonfinite("the observation", states)
        if state is None:
            state, episode_start = self._initial(len(states)), True
        if len(state.last_action) != len(states):
            raise ValueError(
                f"got {len(states)} observations with the state of {len(state.last_action)}"
            )
        start = _one_each("episode_start", episode_start is not None and episode_start, states)
        start = start.astype(bool)
        last_action = np.where(start[:, None], np.float32(0), state.last_action)
        last_reward = self._last_reward(reward, start)
        inputs = np.concatenate([states, last_action, last_reward[:, None]], axis=1)
        memory, features = self._encode(inputs, start, state.memory)
        rng = None if deterministic else np.random.default_rng([seed, state.steps])
        unit = self._choose(self._head(features), rng)
        _refuse_nonfinite("the action", unit)
        commands = self._in_units(unit)
        after = PolicyState(memory, unit, state.steps + 1)
        return (commands[0] if np.ndim(observation) == 1 else commands), after

    def _last_reward(self, reward: "float | np.ndarray | None", start: np.ndarray) -> np.ndarray:
        """The reward of the last action as the network reads it; none where an episode starts."""
        if reward is None and not start.all():
            raise ValueError(
                "the reward of the last step is part of the history: "
                "pass reward=... wherever no episode starts"
            )
        paid = _one_each("reward", 0.0 if reward is None else reward, start)
        _refuse_nonfinite("the reward", paid[~start])
        return np.where(start, 0.0, paid + self.about["reward_shift"]).astype(np.float32)

    def acted(
        self, state: "PolicyState", action: "np.ndarray | np.integer | float | int"
    ) -> PolicyState:
        """The state after what was really done, in the units of the plant, where that was not what
        `predict` returned: a fall-back or an operator acted, or the action was late."""
        batch, shape = len(state.last_action), () if self.discrete else (self.action_size,)
        try:
            done = np.broadcast_to(np.asarray(action, np.float64), (batch, *shape))
        except ValueError:
            raise ValueError(
                f"an action has shape {shape}, or {(batch, *shape)} for each of the {batch} "
                f"episodes; got {np.shape(action)}"
            ) from None
        _refuse_nonfinite("the action", done)
        if self.discrete:
            numbers = np.arange(self.action_size)
            if not np.isin(done, numbers).all():
                raise ValueError(f"actions are numbered 0 .. {numbers[-1]}, got {action}")
            return state._replace(last_action=(done[:, None] == numbers).astype(np.float32))
        unit = 2 * (done - self._low) / (self._high - self._low) - 1
        # Beyond the bounds counts as the bound.
        return state._replace(last_action=np.clip(unit, -1, 1).astype(np.float32))

    def outside(self, observation: np.ndarray, margin: float = 0.0) -> "np.bool_ | np.ndarray":
        """Whether an observation is outside anything that the data holds, by more than `margin` of
        its range, or not finite. It is what the light guard looks at: where it is true, the policy
        acts on something that it has never seen."""
        ranges = self.about.get("ranges")
        if ranges is None:
            raise ValueError("the ranges of the data are not in this file")
        low, high = (
            np.asarray(ranges[name], np.float32) for name in ("observation_low", "observation_high")
        )
        beyond, seen = margin * (high - low), np.asarray(observation, np.float32)
        if seen.shape[-1:] != (self.state_size,):
            raise ValueError(f"an observation has {self.state_size} values, got shape {seen.shape}")
        inside = (seen >= low - beyond) & (seen <= high + beyond)  # false where not a number
        return ~inside.all(axis=-1)

    def _initial(self, batch: int) -> PolicyState:
        """Before anything was seen."""
        memory = np.zeros((batch, self._blocks, 2, self._units), np.float32)
        return PolicyState(memory, np.zeros((batch, self.action_size), np.float32), 0)

    # --- The network: encoder, memory, head ------------------------------------------------------

    def _encode(
        self, inputs: np.ndarray, start: np.ndarray, memory: np.ndarray
    ) -> "tuple[np.ndarray, np.ndarray]":
        """(observation, last action, last reward) and memory -> memory and features."""
        arrays, kind = self.arrays, self.about["memory"]
        if "input_mean" in arrays:
            inputs = (inputs - arrays["input_mean"]) / arrays["input_std"]
            inputs = np.clip(inputs, -LARGEST_INPUT, LARGEST_INPUT)
            inputs[:, -1] = np.where(start, 0.0, inputs[:, -1])  # there is no reward yet
        if kind == "none":
            return memory, inputs[:, : self.state_size]
        x = self._layer("project", inputs)
        after = np.empty_like(memory)
        for layer in range(self._blocks):
            after[:, layer], x = self._block(f"block{layer}", x, start, memory[:, layer])
        if kind == "gated":
            x = np.concatenate([inputs[:, : self.state_size], arrays["gate"] * x], axis=1)
        return after, x

    def _block(
        self, name: str, x: np.ndarray, start: np.ndarray, memory: np.ndarray
    ) -> "tuple[np.ndarray, np.ndarray]":
        """One layer of memory: h <- decay * h + B x, y = C h + D x, and a gated residual.

        h and decay are complex; both are kept as a real and an imaginary half. Re and Im of the
        product are re * decay_re - im * decay_im and im * decay_re + re * decay_im: each half times
        one vector, plus the other half times another.
        """
        arrays = self.arrays
        normed = _layer_norm(x, arrays[f"{name}_scale"], arrays[f"{name}_shift"])
        drive = (normed @ arrays[f"{name}_b"]).reshape(memory.shape)
        carried = memory * arrays[f"{name}_decay"] + memory[:, ::-1] * arrays[f"{name}_turn"]
        memory = np.where(start[:, None, None], drive, drive + carried)
        y = memory.reshape(len(x), -1) @ arrays[f"{name}_c"] + arrays[f"{name}_d"] * normed
        z = _gelu(y) @ arrays[f"{name}_gate_weight"] + arrays[f"{name}_gate_bias"]
        value, gate = z[:, : x.shape[1]], z[:, x.shape[1] :]
        return memory, x + value * 0.5 * (1 + np.tanh(0.5 * gate))  # times sigmoid(gate)

    def _head(self, x: np.ndarray) -> np.ndarray:
        for layer in range(self.about["head_depth"]):
            x = self._layer(f"head{layer}", x)
        return x @ self.arrays["out_weight"] + self.arrays["out_bias"]

    def _layer(self, name: str, x: np.ndarray) -> np.ndarray:
        """Linear -> LayerNorm -> leaky ReLU."""
        arrays = self.arrays
        x = x @ arrays[f"{name}_weight"] + arrays[f"{name}_bias"]
        x = _layer_norm(x, arrays[f"{name}_scale"], arrays[f"{name}_shift"])
        return np.maximum(x, 0.01 * x)

    # --- Actions ---------------------------------------------------------------------------------

    def _choose(self, out: np.ndarray, rng: "np.random.Generator | None") -> np.ndarray:
        """The mode of the policy, or a sample if there is a generator."""
        size = self.action_size
        if not self.discrete:
            mean = out[:, :size]
            if rng is not None:
                log_sigma = np.clip(out[:, size:], *LOG_SIGMA_RANGE)
                mean = mean + np.exp(log_sigma) * rng.standard_normal(mean.shape, np.float32)
            return np.tanh(mean)
        preference = out[:, -size:]  # advantages, or log-probabilities up to a constant
        choice = preference.argmax(axis=1)
        if rng is not None and self.about["distribution"] == "greedy":
            explores = rng.random(len(out)) < float(self.arrays["epsilon"])
            choice = np.where(explores, rng.integers(size, size=len(out)), choice)
        elif rng is not None:
            choice = (preference + rng.gumbel(size=preference.shape)).argmax(axis=1)
        one_hot = (choice[:, None] == np.arange(size)).astype(np.float32)
        # The largest of numbers with a NaN among them is no choice.
        return np.where(np.isfinite(preference).all(axis=1)[:, None], one_hot, np.float32(np.nan))

    def _in_units(self, unit: np.ndarray) -> np.ndarray:
        """Actions in the units of the plant; the number of the action if they are discrete."""
        if self.discrete:
            return unit.argmax(axis=1)
        return (self._low + (unit + 1) * (self._high - self._low) / 2).astype(np.float32)


def _layer_norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Zero mean and unit variance over the last axis, then a trained scale and shift."""
    size = x.shape[-1]
    x = x - x.sum(axis=-1, keepdims=True) / size
    variance = (x * x).sum(axis=-1, keepdims=True) / size
    return x / np.sqrt(variance + 1e-5) * scale + shift


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _one_each(name: str, value: Any, episodes: np.ndarray) -> np.ndarray:
    """A value for every episode, from one for all of them or one each."""
    values = np.asarray(value)
    if values.shape not in ((), (len(episodes),)):
        raise ValueError(
            f"{name} has shape {values.shape}: expected one value, or one for each of the "
            f"{len(episodes)} observations"
        )
    return np.broadcast_to(values, (len(episodes),))


def _refuse_nonfinite(what: str, values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise ValueError(f"{what} has a value that is not finite; the memory would never lose it")
