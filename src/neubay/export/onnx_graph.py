"""A policy as an ONNX graph: one step, with its memory as an input and an output.

    observation, reward, start, last_action, memory  ->  action, next_memory

In ONNX every value has one name, so the memory that comes out is `next_memory`. Built from the
plain arrays with operators that ONNX has had since its opset 17.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from neubay.errors import NeubayError, imported
from neubay.export.plain import PlainPolicy, metadata
from neubay.export.standalone import LARGEST_INPUT

OPSET, IR_VERSION = 17, 8


class _Graph:
    """Nodes and constants, collected while a graph is written down as expressions."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def constant(self, value: Any, name: str = "") -> str:
        """A constant; numbers are float32, arrays as they are."""
        array = value if isinstance(value, np.ndarray) else np.asarray(value, np.float32)
        name = name or f"constant{len(self.constants)}"
        self.constants[name] = self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def __call__(self, operator: str, *inputs: Any, name: str = "", **attributes: Any) -> str:
        """The output of an operator; what is not the name of a value becomes a constant."""
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        name = name or f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, names, [name], name, **attributes))
        return name


def write_onnx(policy: PlainPolicy, path: Path) -> None:
    """Write the graph, checked by `onnx.checker`."""
    missing = "ONNX needs the package onnx: pip install 'neubay[export]'"
    onnx = imported("onnx", NeubayError(missing))
    graph = _Graph(onnx)
    for name, array in policy.arrays.items():
        if not name.startswith("out_") and name != "epsilon":
            graph.constant(array, name)
    _step(graph, policy)
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes, "policy", *_signature(onnx, policy), list(graph.constants.values())
        ),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="neubay",
        producer_version=policy.about["provenance"].get("neubay", "unknown"),
        doc_string=f"A policy for '{policy.about['task']}': one step.",
    )
    texts = {key: value for key, value in metadata(policy).items() if value is not None}
    onnx.helper.set_model_props(
        model, {k: v if isinstance(v, str) else json.dumps(v) for k, v in texts.items()}
    )
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


def _signature(onnx: Any, policy: PlainPolicy) -> tuple[list[Any], list[Any]]:
    """Inputs and outputs with their types and shapes; the batch has any size."""
    value, kinds = onnx.helper.make_tensor_value_info, onnx.TensorProto
    action = (
        (kinds.INT64, ["batch"])
        if policy.discrete
        else (kinds.FLOAT, ["batch", policy.action_size])
    )
    inputs = [
        value("observation", kinds.FLOAT, ["batch", policy.about["state_size"]]),
        value("reward", kinds.FLOAT, ["batch"]),
        value("start", kinds.BOOL, ["batch"]),
        value("last_action", *action),
    ]
    outputs = [value("action", *action)]
    if policy.layers:
        shape = ["batch", policy.layers, 2, policy.about["memory_size"]]
        inputs.append(value("memory", kinds.FLOAT, shape))
        outputs.append(value("next_memory", kinds.FLOAT, shape))
    return inputs, outputs


def _step(graph: _Graph, policy: PlainPolicy) -> None:
    """The whole step, from the inputs to the outputs."""
    inputs = _inputs(graph, policy)
    state = graph("Slice", inputs, _ints(0), _ints(policy.about["state_size"]), _ints(1))
    features = state
    if policy.layers:
        features = _layer(graph, "project", inputs)
        memories = []
        for layer in range(policy.layers):
            memory, features = _block(graph, policy, layer, features)
            memories.append(memory)
        graph("Concat", *memories, axis=1, name="next_memory")
    if "gate" in policy.arrays:
        features = graph("Concat", state, graph("Mul", features, "gate"), axis=1)
    for layer in range(policy.about["head_depth"]):
        features = _layer(graph, f"head{layer}", features)
    size = policy.action_size
    columns = slice(-size, None) if policy.discrete else slice(0, size)  # mean, or preferences
    out = graph("Gemm", features, *(policy.arrays[f"out_{x}"][..., columns] for x in _LINEAR))
    if policy.discrete:
        graph("ArgMax", out, axis=1, keepdims=0, name="action")
        return
    half, middle = policy.scale
    graph("Add", graph("Mul", graph("Tanh", out), half), middle, name="action")


_LINEAR = ("weight", "bias")


def _inputs(graph: _Graph, policy: PlainPolicy) -> str:
    """(observation, last action, last reward) as one row per episode, standardised; of the last
    two there is nothing where an episode starts."""
    start = graph("Unsqueeze", "start", _ints(1))
    if policy.discrete:
        depth = np.asarray(policy.action_size, np.int64)
        action = graph("OneHot", "last_action", depth, np.asarray([0, 1], np.float32), axis=-1)
    else:
        half, middle = policy.scale
        action = graph("Div", graph("Sub", "last_action", middle), half)
    shifted = graph("Add", "reward", policy.about["reward_shift"])
    reward = graph("Unsqueeze", shifted, _ints(1))
    action, reward = (graph("Where", start, 0.0, value) for value in (action, reward))
    inputs = graph("Concat", "observation", action, reward, axis=1)
    if "input_mean" not in policy.arrays:
        return inputs
    scaled = graph("Div", graph("Sub", inputs, "input_mean"), "input_std")
    clipped = graph("Clip", scaled, -LARGEST_INPUT, LARGEST_INPUT)
    # Before an episode's first step there is no reward: it counts as the mean one.
    into = len(policy.arrays["input_mean"])
    is_reward = graph("And", start, np.arange(into) == into - 1)
    return graph("Where", is_reward, 0.0, clipped)


def _block(graph: _Graph, policy: PlainPolicy, layer: int, x: str) -> tuple[str, str]:
    """One layer of memory: h <- decay * h + B x, y = C h + D x, and a gated residual."""
    name, units = f"block{layer}", policy.about["memory_size"]
    halves, row = _ints(-1, 1, 2, units), _ints(-1, 2 * units)
    normed = _layer_norm(graph, name, x)
    drive = graph("Reshape", graph("MatMul", normed, f"{name}_b"), halves)
    before = graph("Slice", "memory", _ints(layer), _ints(layer + 1), _ints(1))
    real, imaginary = (graph("Slice", before, _ints(i), _ints(i + 1), _ints(2)) for i in (0, 1))
    swapped = graph("Concat", imaginary, real, axis=2)
    kept, turned = graph("Mul", before, f"{name}_decay"), graph("Mul", swapped, f"{name}_turn")
    carried = graph("Add", drive, graph("Add", kept, turned))
    start = graph("Reshape", "start", _ints(-1, 1, 1, 1))
    memory = graph("Where", start, drive, carried)
    recalled = graph("MatMul", graph("Reshape", memory, row), f"{name}_c")
    y = graph("Add", recalled, graph("Mul", normed, f"{name}_d"))
    gated = graph("Gemm", _gelu(graph, y), f"{name}_gate_weight", f"{name}_gate_bias")
    width = policy.arrays[f"{name}_d"].size
    value = graph("Slice", gated, _ints(0), _ints(width), _ints(1))
    gate = graph("Sigmoid", graph("Slice", gated, _ints(width), _ints(2 * width), _ints(1)))
    return memory, graph("Add", x, graph("Mul", value, gate))


def _layer(graph: _Graph, name: str, x: str) -> str:
    """Linear -> LayerNorm -> leaky ReLU."""
    linear = graph("Gemm", x, f"{name}_weight", f"{name}_bias")
    return graph("LeakyRelu", _layer_norm(graph, name, linear), alpha=0.01)


def _layer_norm(graph: _Graph, name: str, x: str) -> str:
    return graph("LayerNormalization", x, f"{name}_scale", f"{name}_shift", axis=-1, epsilon=1e-5)


def _gelu(graph: _Graph, x: str) -> str:
    cubed = graph("Mul", graph("Mul", x, x), x)
    inner = graph("Add", x, graph("Mul", cubed, 0.044715))
    bent = graph("Tanh", graph("Mul", inner, math.sqrt(2 / math.pi)))
    return graph("Mul", graph("Mul", x, 0.5), graph("Add", bent, 1.0))


def _ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)
