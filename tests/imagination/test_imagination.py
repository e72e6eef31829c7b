"""Imagination against a plain restatement of Algorithm 2, one rollout and one step at a time."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neubay import imagination
from neubay.config import RolloutConfig, WorldConfig
from neubay.data.dataset import Dataset
from neubay.imagination import Branches, Ending, Rollouts, Rules
from neubay.imagination.branches import recall
from neubay.tape import AgentInput, Prefix
from neubay.tasks import ContinuousActions, Task
from neubay.world.model import Member, Scaler, World

HORIZON = 150  # T
ROLLOUTS = 24
STATE, ACTION = 3, 2


def termination(state: Any, action: Any, next_state: Any) -> Any:
    return next_state[..., 0] > 2.0


def make_dataset(rng: np.random.Generator, lengths: tuple[int, ...]) -> Dataset:
    """Episodes of the given lengths; those shorter than T end in a terminal, every second one."""
    steps = sum(lengths)
    ends = np.cumsum(lengths) - 1
    terminals = np.zeros(steps, bool)
    terminals[[end for i, end in enumerate(ends) if lengths[i] < HORIZON and i % 2 == 0]] = True
    timeouts = np.zeros(steps, bool)
    timeouts[ends] = ~terminals[ends]
    states = rng.normal(size=(steps + 1, STATE)).astype(np.float32)
    return Dataset.from_arrays(
        states[:-1],
        rng.uniform(-1, 1, (steps, ACTION)).astype(np.float32),
        rng.normal(size=steps).astype(np.float32),
        terminals,
        timeouts,
        states[1:],
        task=Task(
            name="toy",
            state_size=STATE,
            actions=ContinuousActions(-np.ones(ACTION), np.ones(ACTION)),
            horizon=HORIZON,
            termination=termination,
        ),
    )


def draw(keys: Any, size: int) -> Any:
    """Noise in [-1, 1) from the bits of the keys: generators would be slow to compile."""
    bits = jax.random.key_data(keys)[:, :1] * (2 * jnp.arange(1, size + 1, dtype=jnp.uint32) + 1)
    return (bits >> 16).astype(jnp.float32) / 2.0**15 - 1


class ToyWorld(eqx.Module):
    """Noisy linear dynamics; the reward tells the member, the uncertainty is a function of s."""

    drift: jax.Array
    size: int = eqx.field(static=True)
    broken_above: jax.Array | float = jnp.inf

    def select(self, member: Any) -> "ToyMembers":
        return ToyMembers(self, member.astype(jnp.float32))

    def uncertainty(self, state: Any, action: Any) -> Any:
        return jnp.abs(state).mean(-1) + 0.1 * action[:, 0]


class ToyMembers(eqx.Module):
    world: ToyWorld
    member: Any  # its number; between and beyond numbers of members there are worlds as well

    def beyond(self, others: "ToyMembers", widen: float) -> "ToyMembers":
        return ToyMembers(self.world, self.member + widen * (self.member - others.member))

    def sample(self, state: Any, action: Any, keys: Any) -> Any:
        next_state = 0.9 * state + (self.world.drift * self.member - 0.05)[:, None]
        next_state = next_state + 0.1 * action.sum(-1, keepdims=True) + 0.5 * draw(keys, STATE)
        reward = self.member + 0.01 * jnp.tanh(next_state.sum(-1))
        reward = jnp.where(next_state[:, 1] > self.world.broken_above, jnp.nan, reward)
        return next_state, reward


class Adder(eqx.Module):
    """Remembers the sum of all it saw and how many rows that was; acts on both."""

    noise: float = 0.3

    def _row(self, inputs: AgentInput) -> Any:
        ones = jnp.ones_like(inputs.last_reward)
        return jnp.concatenate(
            [inputs.state, inputs.last_action, inputs.last_reward[..., None], ones[..., None]], -1
        )

    def initial(self, batch: int) -> Any:
        return {"sum": jnp.zeros((batch, STATE + ACTION + 2))}

    def recall(self, history: AgentInput, length: Any) -> Any:
        read = jnp.arange(history.start.shape[0])[:, None] < length
        return {"sum": jnp.where(read[..., None], self._row(history), 0).sum(0)}

    def act(self, memory: Any, inputs: AgentInput, keys: Any) -> Any:
        total = jnp.where(inputs.start[:, None], 0, memory["sum"]) + self._row(inputs)
        mean = total[:, :ACTION] / total[:, -1:]
        return {"sum": total}, jnp.tanh(mean + self.noise * draw(keys, ACTION))


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return make_dataset(np.random.default_rng(0), (5, 150, 1, 70, 128, 30, 149))


@pytest.fixture(scope="module")
def world() -> ToyWorld:
    return ToyWorld(jnp.array(0.03), size=6, broken_above=jnp.array(jnp.inf))


class Scene(NamedTuple):
    prefix: Prefix
    branches: Branches
    member: np.ndarray


def make_scene(
    dataset: Dataset, seed: int = 0, initial: float = 0.0, count: int = ROLLOUTS
) -> Scene:
    rng = np.random.default_rng(seed)
    prefix = imagination.draw_histories(rng, dataset.histories, count, initial)
    member = imagination.draw_members(rng, count, 6)
    return Scene(prefix, imagination.branch(dataset, prefix), member)


def restated(
    dataset: Dataset, world: Any, policy: Any, scene: Scene, rules: Rules, key: Any
) -> list[dict[str, Any]]:
    """Algorithm 2 as written: one rollout at a time, its history read from the data row by row."""
    rollouts = []
    rollout_key, member_key = jax.random.split(key)
    keys = jax.random.split(rollout_key, len(scene.member))
    redrawn = jax.random.randint(member_key, (rules.steps, len(keys)), 0, world.size)
    act, look = eqx.filter_jit(policy.act), eqx.filter_jit(world.uncertainty)

    @eqx.filter_jit
    def sample(world: Any, member: Any, other: Any, *inputs: Any) -> Any:
        return world.select(member).beyond(world.select(other), rules.widen).sample(*inputs)

    tape = dataset.tape
    for k, (first, t) in enumerate(zip(*scene.prefix, strict=True)):
        episode = list(dataset.histories.first).index(first)
        memory = policy.initial(1)
        last_action, last_reward = np.zeros(ACTION, np.float32), np.float32(0)
        for row in range(first, first + t):
            seen = AgentInput(
                tape.state[row][None],
                last_action[None],
                last_reward[None],
                np.array([row == first]),
            )
            memory, _ = act(memory, seen, keys[:1])
            last_action, last_reward = tape.action[row], tape.reward[row]
        state, done = tape.state[first + t], t >= dataset.histories.length[episode]
        found = {"ending": Ending.UNACTED, "state": [state], "action": [], "reward": []}
        found |= {"terminated": [], "penalty": [], "uncertainty": []}
        start, step_keys = t, jax.random.split(keys[k], (rules.steps, 2))
        apart = int(jax.random.randint(jax.random.fold_in(keys[k], 0), (), 1, world.size))
        while not done:
            act_key, world_key = step_keys[t - start]
            seen = AgentInput(
                state[None], last_action[None], np.asarray(last_reward)[None], np.array([t == 0])
            )
            memory, action = act(memory, seen, act_key[None])
            member = int(redrawn[t - start, k] if rules.redraw_member else scene.member[k])
            other = (member + apart) % world.size
            answer = sample(
                world, *jnp.array([[member], [other]]), state[None], action, world_key[None]
            )
            next_state, reward = (np.asarray(leaf[0]) for leaf in answer)
            uncertainty = float(look(state[None], action)[0]) if rules.uses_uncertainty else 0.0
            if not (np.isfinite(next_state).all() and np.isfinite(reward)):
                found["ending"] = Ending.NON_FINITE
                break
            terminal = rules.termination is not None and bool(
                rules.termination(state, action[0], next_state)
            )
            uncertain = uncertainty > rules.threshold
            timeout = t + 1 >= rules.horizon
            capped = rules.max_steps is not None and t + 1 - start >= rules.max_steps
            halted = uncertain and rules.halt_penalty is not None and not terminal
            found["state"].append(next_state)
            found["action"].append(np.asarray(action[0]))
            found["reward"].append(reward)
            found["terminated"].append(terminal or halted)
            cost = rules.penalty * uncertainty + (rules.halt_penalty or 0) * halted
            found["penalty"].append(cost)
            found["uncertainty"].append(uncertainty)
            done = terminal or uncertain or timeout or capped
            if done:
                found["ending"] = (
                    Ending.TERMINAL
                    if terminal
                    else Ending.UNCERTAIN
                    if uncertain
                    else Ending.TIMEOUT
                    if timeout
                    else Ending.HORIZON
                )
            state, last_action, last_reward = next_state, np.asarray(action[0]), reward
            t += 1
        rollouts.append(found)
    return rollouts


def split_rows(rollouts: Rollouts) -> list[Any]:
    ends = np.cumsum(rollouts.length + 1)
    return [
        jax.tree.map(lambda leaf, b=begin, e=end: leaf[b:e], rollouts.rows)
        for begin, end in zip(ends - rollouts.length - 1, ends, strict=True)
    ]


RULES = {
    "timeout": Rules(horizon=HORIZON),
    "published": Rules(horizon=HORIZON, termination=termination, threshold=1.2),
    "horizon": Rules(horizon=HORIZON, termination=termination, max_steps=7),
    "penalty": Rules(horizon=HORIZON, threshold=1.2, penalty=0.7),
    "halt": Rules(
        horizon=HORIZON, termination=termination, threshold=1.0, penalty=0.5, halt_penalty=100.0
    ),
    "redraw": Rules(horizon=HORIZON, max_steps=9, redraw_member=True),
    "wide": Rules(horizon=HORIZON, termination=termination, threshold=1.2, widen=0.5),
}


ONE_QUICK = [n if n == "published" else pytest.param(n, marks=pytest.mark.slow) for n in RULES]


@pytest.mark.parametrize("name", ONE_QUICK)
def test_imagine_is_algorithm_2(name: str, dataset: Dataset, world: ToyWorld) -> None:
    rules, policy, key = RULES[name], Adder(), jax.random.key(3)
    scene = make_scene(dataset, seed=1)
    rollouts = imagination.imagine(world, policy, scene.branches, scene.member, rules, key)
    expected = restated(dataset, world, policy, scene, rules, key)
    assert sum(map(len, (e["state"] for e in expected))) == len(rollouts.rows.state)
    assert (rollouts.rows.penalty is not None) == rules.penalised
    for k, (rows, found) in enumerate(zip(split_rows(rollouts), expected, strict=True)):
        steps = len(found["action"])
        assert rollouts.length[k] == steps
        assert rollouts.ending[k] == found["ending"]
        np.testing.assert_allclose(rows.state, found["state"], atol=2e-5)
        np.testing.assert_allclose(
            rows.action[:steps].reshape(-1), np.ravel(found["action"]), atol=2e-5
        )
        np.testing.assert_allclose(rows.reward[:steps], found["reward"], atol=2e-5)
        assert list(rows.terminated[:steps]) == found["terminated"]
        # the row that carries s_{t+L} alone
        assert not rows.action[-1].any() and not rows.reward[-1] and not rows.terminated[-1]
        assert rows.start[0] == (scene.prefix.length[k] == 0) and not rows.start[1:].any()
        assert not rows.real.any()
        if rules.penalised:
            np.testing.assert_allclose(rows.penalty[:steps], found["penalty"], rtol=1e-4, atol=2e-5)
            assert not rows.penalty[-1]
        highest = max(found["uncertainty"], default=0.0)
        np.testing.assert_allclose(rollouts.uncertainty[k], highest, rtol=1e-4)


def test_every_ending_but_two_occurs_under_the_published_rules(
    dataset: Dataset, world: ToyWorld
) -> None:
    ended: dict[Ending, list[bool]] = {ending: [] for ending in Ending}
    for seed in range(8):
        scene = make_scene(dataset, seed)
        rollouts = imagination.imagine(
            world, Adder(), scene.branches, scene.member, RULES["published"], jax.random.key(seed)
        )
        record = rollouts.record()
        assert record["horizon_max"] == rollouts.length.max()
        for rows, length, code in zip(
            split_rows(rollouts), rollouts.length, rollouts.ending, strict=True
        ):
            assert not rows.terminated[: max(length - 1, 0)].any()
            ended[Ending(code)].append(bool(length and rows.terminated[length - 1]))
            assert record[f"ended_{Ending(code).name.lower()}"] > 0
    happened = {ending for ending, found in ended.items() if found}
    assert happened == {Ending.TERMINAL, Ending.UNCERTAIN, Ending.TIMEOUT, Ending.UNACTED}
    # only a terminal stops bootstrapping
    assert all(ended[Ending.TERMINAL])
    assert not any(ended[Ending.UNCERTAIN] + ended[Ending.TIMEOUT] + ended[Ending.UNACTED])


@pytest.mark.slow
def test_compaction_changes_nothing(dataset: Dataset, world: ToyWorld) -> None:
    scene, rules, key = make_scene(dataset, seed=2), RULES["published"], jax.random.key(5)
    inputs = world, Adder(), scene.branches, scene.member, rules, key
    assert len(imagination.shrinking_widths(ROLLOUTS)) > 1
    compacted = imagination.imagine(*inputs)
    plain = imagination.imagine(*inputs, widths=(ROLLOUTS,))
    for one, other in zip(jax.tree.leaves(compacted), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_shrinking_widths_end_small() -> None:
    assert imagination.shrinking_widths(100)[0] == 100
    for count in (1, 2, 7, 33, 100, 1000):
        widths = imagination.shrinking_widths(count)
        assert widths[0] == count and list(widths) == sorted(set(widths), reverse=True)


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)], ids=["sorted", "reversed"])
def test_memory_at_the_branching_point_is_that_of_the_replayed_history(
    order: slice, dataset: Dataset
) -> None:
    """Invariant 5, with a policy whose memory is known: the sum of all it saw. That histories
    come longest first makes reading them cheaper, and nothing else."""
    prefix = jax.tree.map(lambda leaf: leaf[order], make_scene(dataset, seed=4).prefix)
    branches = imagination.branch(dataset, prefix)
    memory = jax.jit(lambda branches: recall(Adder(), branches))(branches)
    for k, (first, length) in enumerate(zip(*prefix, strict=True)):
        before = slice(first, max(first, first + length - 1))  # the last row read shows a_{t-2}
        expected = np.concatenate(
            [
                dataset.tape.state[first : first + length].sum(0),
                dataset.tape.action[before].sum(0),
                [dataset.tape.reward[before].sum(), length],
            ]
        )
        np.testing.assert_allclose(memory["sum"][k], expected, atol=1e-3)


@pytest.mark.slow
def test_one_member_per_rollout(dataset: Dataset, world: ToyWorld) -> None:
    """Invariant 3; the toy world's reward is its member's number, plus at most 0.01."""
    scene, key = make_scene(dataset, seed=6), jax.random.key(7)
    policy = Adder()
    inputs = world, policy, scene.branches, scene.member
    rollouts = imagination.imagine(*inputs, RULES["horizon"], key)
    for rows, member, length in zip(
        split_rows(rollouts), scene.member, rollouts.length, strict=True
    ):
        assert (np.rint(rows.reward[:length]) == member).all()
    rollouts = imagination.imagine(*inputs, RULES["redraw"], key)
    used = np.rint(np.concatenate([rows.reward[:-1] for rows in split_rows(rollouts)]))
    assert set(used) == set(range(6))


@pytest.mark.slow
def test_a_non_finite_answer_ends_the_rollout_and_is_not_kept(
    dataset: Dataset, world: ToyWorld
) -> None:
    scene = make_scene(dataset, seed=8)
    inputs = Adder(), scene.branches, scene.member, RULES["timeout"], jax.random.key(1)
    sound = imagination.imagine(world, *inputs)
    broken = imagination.imagine(
        ToyWorld(world.drift, world.size, broken_above=jnp.array(1.5)), *inputs
    )
    assert (broken.ending == Ending.NON_FINITE).sum() > 5
    assert broken.record()["ended_non_finite"] == np.mean(broken.ending == Ending.NON_FINITE)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(broken.rows))
    for k, (good, cut) in enumerate(zip(split_rows(sound), split_rows(broken), strict=True)):
        steps = broken.length[k]
        np.testing.assert_allclose(cut.state, good.state[: steps + 1], atol=1e-6)
        if broken.ending[k] == Ending.NON_FINITE:  # the state that would have followed is the cause
            assert good.state[steps + 1, 1] > 1.5
            assert not cut.terminated.any()


def test_a_history_that_is_a_whole_episode_gives_no_step(dataset: Dataset, world: ToyWorld) -> None:
    prefix = Prefix(*(np.resize(leaf, ROLLOUTS) for leaf in dataset.histories))
    branches = imagination.branch(dataset, prefix)
    assert branches.whole.all()
    rollouts = imagination.imagine(
        world,
        Adder(),
        branches,
        np.zeros(ROLLOUTS, np.int32),
        RULES["published"],
        jax.random.key(0),
    )
    assert not rollouts.length.any()
    assert (rollouts.ending == Ending.UNACTED).all()
    np.testing.assert_array_equal(
        rollouts.rows.state, dataset.tape.state[prefix.first + prefix.length]
    )


@pytest.mark.slow
def test_starting_at_the_initial_state_reads_no_history(dataset: Dataset, world: ToyWorld) -> None:
    scene = make_scene(dataset, initial=1.0)
    assert not scene.prefix.length.any() and not len(scene.branches.history.start)
    assert set(scene.prefix.first) <= set(dataset.histories.first)
    rollouts = imagination.imagine(
        world, Adder(), scene.branches, scene.member, RULES["timeout"], jax.random.key(0)
    )
    assert rollouts.rows.start[np.cumsum(rollouts.length + 1) - rollouts.length - 1].all()
    assert (rollouts.length == HORIZON).all() and (rollouts.ending == Ending.TIMEOUT).all()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(0, 2**32 - 1))
def test_histories_lie_inside_their_episodes(lengths: list[int], seed: int) -> None:
    length = np.array(lengths)
    first = np.cumsum(length + 3) - (length + 3)
    drawn = imagination.draw_histories(np.random.default_rng(seed), Prefix(first, length), 50)
    episode = np.searchsorted(first, drawn.first)
    np.testing.assert_array_equal(first[episode], drawn.first)
    assert (drawn.length >= 0).all() and (drawn.length <= length[episode]).all()
    assert (np.diff(drawn.length) <= 0).all()


def test_histories_are_uniform_over_time_steps_not_episodes() -> None:
    histories = Prefix(np.array([0, 4]), np.array([2, 14]))  # 3 and 15 time steps
    drawn = imagination.draw_histories(np.random.default_rng(0), histories, 18_000)
    step = np.where(drawn.first == 0, drawn.length, 3 + drawn.length)
    counts = np.bincount(step, minlength=18)
    assert len(counts) == 18 and abs(counts - 1000).max() < 5 * math.sqrt(1000)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.25, 1.0])
def test_a_share_of_the_histories_is_empty(share: float) -> None:
    """On top of those that the draw over all time steps gives, every episode as likely."""
    histories = Prefix(np.array([0, 1001, 2002]), np.array([1000, 1000, 1000]))
    drawn = imagination.draw_histories(np.random.default_rng(0), histories, 6000, share)
    expected = share * 6000 + (1 - share) * 6000 / 1001
    empty = drawn.length == 0
    assert abs(empty.sum() - expected) < 5 * math.sqrt(expected - share * 6000 + 1)
    assert (np.diff(drawn.length) <= 0).all()
    if share:
        counts = np.array([(drawn.first[empty] == first).sum() for first in histories.first])
        assert abs(counts - empty.sum() / 3).max() < 5 * math.sqrt(empty.sum() / 3)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_members_are_spread_evenly(rollouts: int, members: int, seed: int) -> None:
    drawn = imagination.draw_members(np.random.default_rng(seed), rollouts, members)
    counts = np.bincount(drawn, minlength=members)
    assert len(drawn) == rollouts and len(counts) == members
    assert counts.max() - counts.min() <= 1


@pytest.mark.slow
def test_a_world_selected_by_member_steps_as_the_whole_world_does() -> None:
    config = WorldConfig(width=16, depth=2, pool=5, members=5)
    members = jax.vmap(lambda key: Member(STATE + ACTION, STATE + 1, config, key=key))(
        jax.random.split(jax.random.key(0), 5)
    )
    unit = [jnp.zeros(STATE), jnp.ones(STATE), jnp.zeros(ACTION), jnp.ones(ACTION)]
    whole = World(members, Scaler(*unit, jnp.array(0.5), jnp.array(2.0)), False, "disagreement")
    keys = jax.random.split(jax.random.key(1), 7)
    state, action = jnp.ones((7, STATE)), jnp.linspace(-1, 1, 7 * ACTION).reshape(7, ACTION)
    member = jnp.array([4, 0, 0, 3, 1, 2, 4])
    next_state, reward = whole.select(member).sample(state, action, keys)
    step = whole.step(state, action, member, keys)
    np.testing.assert_allclose(next_state, step.next_state, atol=1e-5)
    np.testing.assert_allclose(reward, step.reward, atol=1e-5)


def test_rules_of_a_configuration(dataset: Dataset) -> None:
    config = RolloutConfig(penalty=0.5, horizon=9, redraw_member=True, halt_penalty=None)
    rules = Rules.of(config, dataset.task, threshold=1.5, mean_uncertainty=0.25)
    assert rules == Rules(
        horizon=HORIZON,
        termination=termination,
        threshold=1.5,
        max_steps=9,
        penalty=2.0,
        redraw_member=True,
    )
    assert rules.steps == 9 and rules.penalised
    plain = Rules.of(RolloutConfig(), dataset.task, threshold=math.inf, mean_uncertainty=0.0)
    assert plain.steps == HORIZON and not plain.penalised
