"""What one engine layer shows about one node that it holds and that should not compute lower.

There are five rules. The strongest evidence is the types of the node's weights, then the types in
the name of a product's tactic. Next come the types that a lone product reads, and a layer with a
single floating-point type. The last is the conversions inside a generated kernel. If none of them
decides, the node is not observable.

A generated kernel's name lists its operations, with conversions. If there are exactly as many as
the graph asks for, none was left out, so every operation runs in the type that the graph gives it.
Conversions that low operators bring of their own are added. If an operator was never looked at,
the count says nothing.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise, takewhile

from precision_bisect.backends.inspection.engine_kernels import (
    CAST,
    MOVES,
    GraphNodes,
    Kernel,
    float_types,
)
from precision_bisect.backends.inspection.engine_layers import BELOW_FP32, normal_type
from precision_bisect.errors import printable
from precision_bisect.graphs.classify import FOLLOWERS
from precision_bisect.precisions import HighName
from precision_bisect.trial import Honour

_FP32 = frozenset(("fp32",))
PRODUCTS = frozenset(("Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"))
PRODUCT_OPERATIONS = frozenset(("Corr", "Deco", "Fc"))
_PRODUCT_KIND = re.compile(r"conv(?!ert)|correlation|fullyconnected|gemm|matmul|matrixmul", re.I)
# What an inspector calls the weights of a layer's one product.
_WEIGHTS = frozenset(("Weights", "ConvWeights"))
_TYPE = "bf16|tf32|f16|f32|i8|i32|e4m3|e5m2"
# The types in a tactic's name: what it reads and writes, multiplies and adds in, and scales in.
_XMMA = re.compile(
    rf"_xmma_(?:\w+_)?({_TYPE})(?:{_TYPE})_({_TYPE})(?:{_TYPE})?_(?:{_TYPE})(?=_|\Z)"
)
_MOVING = FOLLOWERS | {"Cast"}
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
# Operators that bring conversions when low on TensorRT-RTX 1.7, by each operation they become.
# Some are split over two kernels. A Pow with a small whole exponent becomes products, with none.
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
# An FP16 division by a square root becomes a product with the FP32 reciprocal; these are the
# conversions that it brings. The shorter form occurs if something else needs the numerator in
# FP32.
_DIVISIONS = {(CAST, "Div", CAST, "Mul", CAST): 3, (CAST, "Div", "Mul", CAST): 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one engine layer shows about a node, and why, in one clause.

    A `proof` stands whatever other layers show that hold parts of the same node.
    """

    honour: Honour
    reason: str
    proof: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedType:
    """What is asked of one node: its number, and the float type that it should compute in.

    `typed` tells whether the graph carries the plan as types; if not, its Casts say nothing. `rtx`
    tells whether the engine is one of TensorRT-RTX, whose conversions are known best.
    """

    number: int
    wanted: HighName
    typed: bool
    rtx: bool


def type_shown(graph: GraphNodes, kernel: Kernel, request: AskedType) -> Observation:
    """Return what `kernel` shows about the node asked about, which it holds."""
    observation = (
        _by_weights(graph, kernel, request)
        or _by_tactic(graph, kernel, request)
        or _by_rest(graph, kernel, request)
    )
    # The rules below read inputs and outputs, between which an opaque kernel may do anything.
    if observation is None and kernel.opaque:
        return _unseen(f"{_where(kernel)} is fused and does not show its inside")
    observation = (
        observation
        or _by_operands(graph, kernel, request)
        or _by_single_type(graph, kernel, request)
        or _by_conversions(graph, kernel, request)
    )
    return observation or _unseen(
        f"{_where(kernel)} does not show in which type it computes this one"
    )


def _by_weights(graph: GraphNodes, kernel: Kernel, request: AskedType) -> Observation | None:
    """Look at the weights that the kernel holds: a builder that lowers a product rounds them."""
    own = graph.weights[request.number]
    if not own or not kernel.weights:
        return None
    named_weights = [c for c in kernel.weights if c.name in _WEIGHTS]
    # An inspector names the weights of a layer's one product; others are matched by name and size.
    if named_weights and _products(graph, kernel) == [request.number]:
        types = float_types(named_weights)
    else:
        types = _own_weight_types(graph, kernel, _largest(own))
    return _of_weights(graph, types, kernel, request)


def _own_weight_types(graph: GraphNodes, kernel: Kernel, weight: str) -> frozenset[str]:
    """Return the types of the constants that can be this initializer; none if that is unclear.

    A constant that was not transformed keeps the initializer's name. Otherwise every constant with
    as many elements may be it, if there are as many as initializers of that size in the kernel.
    """
    name = re.compile(re.escape(weight) + r"_constant[A-Z][A-Za-z0-9]*(_myl\d+)?")
    named = [c for c in kernel.weights if name.fullmatch(c.name)]
    if named:
        return float_types(named)
    sizes = {name: size for i in kernel.span for name, size in graph.weights[i].items()}
    alike = [c for c in kernel.weights if c.elements == sizes.get(weight)]
    rivals = [name for name, size in sizes.items() if size == sizes.get(weight)]
    return float_types(alike) if len(alike) >= len(rivals) else frozenset()


def _by_tactic(graph: GraphNodes, kernel: Kernel, request: AskedType) -> Observation | None:
    """Look at the types in the name of the tactic that computes a product.

    Weights have the type that it reads. Two computed operands may be read low because they are
    stored low, and multiplied high all the same.
    """
    named = _tactic_types(kernel)
    if not named or not _computes_product(graph, kernel, request.number):
        return None
    read, multiplied = named
    # Both must agree, or nothing is known of a product without weights.
    types = frozenset((read, multiplied))
    if read in BELOW_FP32 and graph.weights[request.number]:
        types = frozenset((read,))
    reason = f"the tactic of {_where(kernel)} reads {read} and multiplies {multiplied}"
    return _of_types(types, request.wanted, reason, proof=True) or _unseen(reason)


def _by_rest(graph: GraphNodes, kernel: Kernel, request: AskedType) -> Observation | None:
    """Look at the weights of a product whose size no other weight has: they may be padded.

    Smaller constants belong to another operator, such as a bias whose Add the metadata leaves out.
    """
    own = graph.weights[request.number]
    if not own or request.number not in _products(graph, kernel) or not is_product(kernel):
        return None
    sizes = {name: size for i in kernel.span for name, size in graph.weights[i].items()}
    others = {size for name, size in sizes.items() if name != _largest(own)}
    padded = [c for c in kernel.weights if not 0 < c.elements < own[_largest(own)]]
    types = float_types([c for c in padded if c.elements not in others])
    return _of_weights(graph, types, kernel, request)


def _by_operands(graph: GraphNodes, kernel: Kernel, request: AskedType) -> Observation | None:
    """Look at what a product reads, if nothing can have been converted before."""
    if not _computes_product(graph, kernel, request.number):
        return None
    if kernel.fused:
        before = list(
            takewhile(lambda operation: operation not in PRODUCT_OPERATIONS, kernel.operations)
        )
        if kernel.unlisted or CAST in before:
            return None
    types = float_types(kernel.layer.inputs)
    if not kernel.fused and types != {request.wanted}:
        types |= float_types(kernel.layer.outputs)
    # Weights that are not here may be in another layer, and this one the bias or a move only.
    proof = not graph.weights[request.number]
    reason = f"{_where(kernel)} multiplies {_listed(types)}"
    return _of_types(types, request.wanted, reason, proof=proof)


def _by_single_type(graph: GraphNodes, kernel: Kernel, request: AskedType) -> Observation | None:
    """Look at a kernel that reads, writes and holds one floating-point type only."""
    layer = kernel.layer
    types = float_types((*layer.inputs, *layer.outputs, *kernel.weights))
    nothing_low = request.typed and kernel.span.isdisjoint(graph.low | graph.casts)
    if not kernel.converts_nothing and not (nothing_low and types == _FP32):
        return None
    if types != {request.wanted} and not _is_shown(graph, kernel, request.number):
        return None
    return _of_types(types, request.wanted, f"{_where(kernel)} computes in {_listed(types)} only")


def _by_conversions(graph: GraphNodes, kernel: Kernel, request: AskedType) -> Observation | None:
    """Count conversions. Around products they do vanish, so products are left to other rules."""
    if not request.typed or graph.nodes[request.number].op_type in PRODUCTS:
        return None
    if not does_conversions_asked_for(graph, kernel, request.number, request.rtx):
        return None
    return Observation(
        honour=Honour.HONOURED,
        reason=f"{_where(kernel)} misses none of the conversions that the plan asks for",
    )


def _of_types(
    types: frozenset[str], wanted: str, reason: str, *, proof: bool = False
) -> Observation | None:
    """Return the finding that these types alone give; None if they are mixed or unknown."""
    if types in ({wanted}, _FP32):
        return Observation(honour=Honour.HONOURED, reason=reason, proof=proof)
    if types and types <= BELOW_FP32 - {wanted}:
        return Observation(honour=Honour.DEMOTED, reason=reason, proof=proof)
    return None


def _of_weights(
    graph: GraphNodes, types: frozenset[str], kernel: Kernel, request: AskedType
) -> Observation | None:
    """Return the finding that these types of weights give.

    High weights of a product prove nothing if they may be converted for another kernel, or if the
    tactic reads or multiplies lower.
    """
    reason = f"its weights are {_listed(types)} in {_where(kernel)}"
    finding = _of_types(types, request.wanted, reason, proof=True)
    product = graph.nodes[request.number].op_type in PRODUCTS
    if finding is None or finding.honour != Honour.HONOURED or not product:
        return finding
    lower = BELOW_FP32 - {request.wanted}
    return finding if _may_multiply(kernel) and lower.isdisjoint(_tactic_types(kernel)) else None


def _tactic_types(kernel: Kernel) -> tuple[str, ...]:
    """Return the types that the tactic's name says it reads and multiplies in, or ()."""
    match = _XMMA.search(kernel.layer.tactic)
    return tuple(normal_type(word) for word in match.groups()) if match else ()


def _unseen(reason: str) -> Observation:
    return Observation(honour=Honour.NOT_OBSERVABLE, reason=reason)


def _is_shown(graph: GraphNodes, kernel: Kernel, number: int) -> bool:
    """Tell whether the kernel is seen to compute this node.

    Builders drop operators that change nothing, such as a product with one between two Casts, and
    list them all the same.
    """
    op_type = graph.nodes[number].op_type
    if not kernel.operations:
        computing = {i for i in kernel.span if graph.nodes[i].op_type not in _MOVING}
        return op_type in PRODUCTS or computing <= {number}
    return kernel.shows(op_type, (graph.nodes[i].op_type for i in kernel.span))


def computes(graph: GraphNodes, kernel: Kernel, number: int) -> bool:
    """Tell whether the kernel, which lists this node, may compute it.

    It does not if it only moves values, nor if each of its operations is one of another node.
    """
    if kernel.moves_only:
        return False
    if not kernel.operations or kernel.truncated or graph.weights[number]:
        return True
    computing = [op for op in kernel.operations if op not in MOVES]
    others = [graph.nodes[i].op_type for i in kernel.span if i != number]
    return kernel.shows(graph.nodes[number].op_type, ()) or bool(
        Counter(computing) - Counter(kernel.word(op_type) for op_type in others)
    )


def _largest(weights: Mapping[str, int]) -> str:
    return max(weights, key=lambda name: weights[name])


def _products(graph: GraphNodes, kernel: Kernel) -> list[int]:
    return [i for i in kernel.span if graph.nodes[i].op_type in PRODUCTS]


def _computes_product(graph: GraphNodes, kernel: Kernel, number: int) -> bool:
    """Tell whether this node is a product and, if others are fused with it, the only one."""
    products = _products(graph, kernel)
    count = sum(operation in PRODUCT_OPERATIONS for operation in kernel.operations)
    return number in products and (not kernel.fused or len(products) == count == 1)


def _may_multiply(kernel: Kernel) -> bool:
    """Tell whether a product is in the kernel's name; True if that lists no operations.

    Small products are `MulSum`.
    """
    names = kernel.operations
    return not names or is_product(kernel) or ("Mul", "Sum") in pairwise(names)


def is_product(kernel: Kernel) -> bool:
    """Tell whether the engine layer is one that multiplies matrices, by its kind or its name."""
    return _PRODUCT_KIND.search(kernel.layer.kind) is not None or not (
        PRODUCT_OPERATIONS.isdisjoint(kernel.operations)
    )


def _listed(types: frozenset[str]) -> str:
    return " and ".join(sorted(types))


def _where(kernel: Kernel) -> str:
    return f"engine layer {printable(kernel.layer.name)!r}"


def does_conversions_asked_for(
    graph: GraphNodes, kernel: Kernel, number: int, library_known: bool
) -> bool:
    """Tell whether the kernel is seen to do the conversions that the graph asks for in it.

    Casts next to node `number` that no engine layer lists count as asked for here.
    `library_known` tells whether the conversions that operators bring are known for the library.
    """
    own = _own_conversions(graph, kernel, library_known)
    if own is None or kernel.truncated or _counts(graph, kernel):
        return False
    casts = (graph.casts & kernel.span) | (graph.borders(number) & kernel.loose)
    # Not zero: a kernel without conversions is a matter of other rules.
    return 0 < len(casts) == kernel.operations.count(CAST) - own


def _own_conversions(graph: GraphNodes, kernel: Kernel, library_known: bool) -> int | None:
    """Return the conversions that operators of the kernel bring; None if unknown."""
    total, divisions = 0, 0
    for number in kernel.span:
        op_type = graph.nodes[number].op_type
        if op_type not in _OWN and op_type not in _AS_WRITTEN:
            return None
        if number in graph.low:
            if not library_known and (op_type in _OWN or op_type == "Div"):
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
