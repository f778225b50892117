"""Whether a generated kernel does the conversions that the graph asks for, by their number.

A kernel's name lists its operations, with conversions. If there are exactly as many as the graph
asks for, none was left out, so every operation runs in the type that the graph gives it.
Conversions that low operators bring of their own are added. If an operator was never looked at,
the count says nothing.
"""

from collections.abc import Iterator

from precision_bisect.backends.inspection.engine_kernels import CAST, Kernel
from precision_bisect.backends.inspection.graph_nodes import GraphNodes
from precision_bisect.graphs.classify import FOLLOWERS

# fmt: off
_AS_WRITTEN = FOLLOWERS | frozenset((
    "Abs", "Acos", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BatchNormalization", "Cast",
    "Ceil", "Clip", "Conv", "ConvTranspose", "Cos", "Cosh", "CumSum", "Div", "Einsum", "Elu",
    "Equal", "Exp", "Floor", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "Greater",
    "GreaterOrEqual", "HardSigmoid", "HardSwish", "InstanceNormalization", "IsInf", "IsNaN",
    "LeakyRelu", "Less", "Log", "LogSoftmax", "MatMul", "Max", "Mean", "Min", "Mish", "Mod", "Mul",
    "Neg", "Not", "PRelu", "Reciprocal", "ReduceL1", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Resize", "Round", "Selu",
    "Sigmoid", "Sign", "Sin", "Sinh", "Softmax", "Softplus", "Softsign", "Sqrt", "Sub", "Sum",
    "Tan", "Tanh", "ThresholdedRelu", "TopK", "Where",
))
# fmt: on
"""Operators that bring no conversions of their own; seen in FP16 and BF16 on TensorRT-RTX 1.7."""

_HALVES = {"Mean": 1, "Sqrt": 1}
_OWN = {
    "Erf": {"Erf": 2},
    "Gelu": {"Erf": 2},
    "GroupNormalization": _HALVES,
    "LayerNormalization": _HALVES,
    "Pow": {"Pow": 3},
    "RMSNormalization": _HALVES,
    "ReduceL2": {"Sum": 1, "Sqrt": 1},
    "ReduceLogSum": {"Sum": 1, "Log": 1},
}
"""Operators that bring conversions when low on TensorRT-RTX 1.7, by each operation they become.

Some are split over two kernels. A Pow with a small whole exponent becomes products, with none.
"""
_DIVISIONS = {(CAST, "Div", CAST, "Mul", CAST): 3, (CAST, "Div", "Mul", CAST): 2}
"""An FP16 division by a square root becomes a product with the FP32 reciprocal; these are the
conversions that it brings. The shorter form occurs if something else needs the numerator in FP32.
"""


def does_conversions_asked_for(
    graph: GraphNodes, kernel: Kernel, number: int, known: bool
) -> bool:
    """Tell whether the kernel is seen to do the conversions that the graph asks for in it.

    Casts next to node `number` that no engine layer lists count as asked for here. `known` tells
    whether the conversions that operators bring are known for the library.
    """
    own = _own_conversions(graph, kernel, known)
    if own is None or kernel.truncated or _counts(graph, kernel):
        return False
    asked = (graph.casts & kernel.span) | (graph.borders(number) & kernel.loose)
    # Not zero: a kernel without conversions is a matter of other rules.
    return 0 < len(asked) == kernel.operations.count(CAST) - own


def _own_conversions(graph: GraphNodes, kernel: Kernel, known: bool) -> int | None:
    """Return the conversions that operators of the kernel bring; None if unknown."""
    total, divisions = 0, 0
    for number in kernel.span:
        op_type = graph.nodes[number].op_type
        if op_type not in _OWN and op_type not in _AS_WRITTEN:
            return None
        if number in graph.low:
            if not known and (op_type in _OWN or op_type == "Div"):
                return None
            brought = _OWN.get(op_type, {})
            total += sum(brought[operation] for operation in brought.keys() & kernel.operations)
            divisions += op_type == "Div"
    # As many rewritten divisions as there are Divs, the ones with most conversions first.
    return total + sum(sorted(_rewritten_divisions(kernel.operations), reverse=True)[:divisions])


def _rewritten_divisions(operations: tuple[str, ...]) -> Iterator[int]:
    """Yield the conversions of each place that looks like a rewritten division."""
    for start in range(len(operations)):
        for pattern, brought in _DIVISIONS.items():
            if operations[start : start + len(pattern)] == pattern:
                yield brought


def _counts(graph: GraphNodes, kernel: Kernel) -> bool:
    """Tell whether the kernel works on integers, which it converts without being asked."""
    read = (tensor.dtype for tensor in kernel.layer.inputs)
    return not kernel.span.isdisjoint(graph.counting) or any("int" in dtype for dtype in read)
