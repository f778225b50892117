"""LSTM, GRU and RNN as cuDNN computes them in FP16 for ONNX Runtime: each operation is stored.

So are both products of a gate and its sums with the biases. A sigmoid is 1 / (1 + exp(-x)), and
tanh(x) is 2 sigmoid(2 x) - 1: off by 1e-3 at any x, and 0 for x below 2.4e-4. The errors of five
cells on an H200 (November 2026, docs/engines/onnxruntime-cuda.md) are these to three digits, and
those of no other form of tanh. What cuDNN does not compute runs on the CPU in FP32 there.
"""

import onnx

from precision_bisect.graphs.graph import attribute
from precision_bisect.graphs.lowtypes import LowType

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS = {
    "LSTM": ([b"Sigmoid", b"Tanh", b"Tanh"],),
    "GRU": ([b"Sigmoid", b"Tanh"],),
    "RNN": ([b"Tanh"], [b"Relu"]),
}
_BIAS, _PEEPHOLES = 3, 7
# Operators whose result FP16 holds if it holds what they read.
_EXACT = ("Gather", "Neg", "Relu", "Reshape")


def in_cudnn(node: onnx.NodeProto) -> bool:
    """Tell whether ONNX Runtime has cuDNN compute an LSTM, GRU or RNN."""
    if node.op_type not in _GATES or any(node.input[_PEEPHOLES:]):
        return False
    if node.op_type == "GRU" and not _number(node, "linear_before_reset"):
        return False
    if _number(node, "layout") or _number(node, "input_forget"):
        return False
    if any(attribute(node, name) for name in ("activation_alpha", "activation_beta", "clip")):
        return False
    activations = attribute(node, "activations")
    usual = [names * _ways(node) for names in _ACTIVATIONS[node.op_type]]
    return activations is None or [*activations.strings] in usual


def outside(node: onnx.NodeProto) -> str:
    """Return the lines before the steps: the constants, and the weights as products read them."""
    gates, hidden, ways = _GATES[node.op_type], _number(node, "hidden_size"), _ways(node)
    lines = "".join(f" at_{i} = Constant<value = int64 {{{i}}}>()" for i in range(4))
    lines += f"""
    one = Constant<value = float {{1}}>()
    two = Constant<value = float {{2}}>()
    by_gate = Constant<value = int64[4] {{{ways}, -1, {gates}, {hidden}}}>()
    weights_x = Transpose<perm = [0, 2, 1]>(x1)
    weights_h = Transpose<perm = [0, 2, 1]>(x2)"""
    if _has_bias(node):
        lines += f"""
    by_end = Constant<value = int64[4] {{{ways}, 2, 1, {gates * hidden}}}>()
    biases = Reshape(x3, by_end)
    bias_x = Gather<axis = 1>(biases, at_0)
    bias_h = Gather<axis = 1>(biases, at_1)"""
    return lines


def step(node: onnx.NodeProto, low: LowType) -> list[str]:
    """Return the lines that make the states `new_0`, `new_1` of `before_0`, `before_1`.

    They read `values`, and like these have all directions along their first axis.
    """
    gates = range(_GATES[node.op_type])
    lines = []
    for end, source in (("x", "values"), ("h", "before_0")):
        lines.append(f"product_{end} = MatMul({source}, weights_{end})")
        total = f"product_{end}"
        if _has_bias(node):
            total = f"biased_{end}"
            lines.append(f"{total} = Add(product_{end}, bias_{end})")
        lines.append(f"gates_{end} = Reshape({total}, by_gate)")
        lines += [f"{end}_{i} = Gather<axis = 2>(gates_{end}, at_{i})" for i in gates]
    lines += [f"gate_{i} = Add(x_{i}, h_{i})" for i in gates]
    lines += {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}[node.op_type](node)
    return [part for line in lines for part in _stored(line, low)]


def _lstm(_: onnx.NodeProto) -> list[str]:
    return [
        *(line for i in range(3) for line in _sigmoid(f"open_{i}", f"gate_{i}")),
        *_tanh("fresh", "gate_3"),
        "remembered = Mul(open_2, before_1)",
        "added = Mul(open_0, fresh)",
        "new_1 = Add(remembered, added)",
        *_tanh("shown", "new_1"),
        "new_0 = Mul(open_1, shown)",
    ]


def _gru(_: onnx.NodeProto) -> list[str]:
    return [
        *(line for i in range(2) for line in _sigmoid(f"open_{i}", f"gate_{i}")),
        "reset = Mul(open_1, h_2)",
        "candidate = Add(x_2, reset)",
        *_tanh("fresh", "candidate"),
        "rest = Sub(one, open_0)",
        "added = Mul(rest, fresh)",
        "remembered = Mul(open_0, before_0)",
        "new_0 = Add(added, remembered)",
    ]


def _rnn(node: onnx.NodeProto) -> list[str]:
    activations = attribute(node, "activations")
    if activations is not None and activations.strings[0] == b"Relu":
        return ["new_0 = Relu(gate_0)"]
    return _tanh("new_0", "gate_0")


def _sigmoid(name: str, of: str) -> list[str]:
    return [
        f"{name}_negative = Neg({of})",
        f"{name}_power = Exp({name}_negative)",
        f"{name}_total = Add({name}_power, one)",
        f"{name} = Div(one, {name}_total)",
    ]


def _tanh(name: str, of: str) -> list[str]:
    return [
        f"{name}_doubled = Mul({of}, two)",
        *_sigmoid(f"{name}_share", f"{name}_doubled"),
        f"{name}_twice = Mul({name}_share, two)",
        f"{name} = Sub({name}_twice, one)",
    ]


def _stored(line: str, low: LowType) -> list[str]:
    """Return a line whose result is stored."""
    name, _, operation = line.partition(" = ")
    if operation.startswith(_EXACT):
        return [line]
    return [
        f"{name}_exact = {operation}",
        f"{name}_low = Cast<to = {low.onnx_type}>({name}_exact)",
        f"{name} = Cast<to = 1>({name}_low)",
    ]


def _has_bias(node: onnx.NodeProto) -> bool:
    return len(node.input) > _BIAS and bool(node.input[_BIAS])


def _ways(node: onnx.NodeProto) -> int:
    direction = attribute(node, "direction")
    return 2 if direction is not None and direction.s == b"bidirectional" else 1


def _number(node: onnx.NodeProto, name: str) -> int:
    value = attribute(node, name)
    return 0 if value is None else int(value.i)
