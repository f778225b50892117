"""What one engine layer shows about one node that it holds and that should not compute lower.

The rules, the strongest evidence first: the types of the node's weights; the types of what a lone
product reads; a layer with a single floating-point type; the conversions inside a generated
kernel. What none of them decides is not observable.
"""

from dataclasses import dataclass

from precision_bisect.errors import printable
from precision_bisect.evidence import Honour
from precision_bisect.inspection.conversions import does_conversions_asked_for
from precision_bisect.inspection.engine_layers import LOW
from precision_bisect.inspection.graph_nodes import GraphNodes
from precision_bisect.inspection.kernels import CAST, Kernel, float_types
from precision_bisect.model.classify import FOLLOWERS
from precision_bisect.options import HighName

_FP32 = frozenset(("fp32",))
_PRODUCTS = frozenset(("Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"))
_PRODUCT_OPERATIONS = frozenset(("Corr", "Deco", "Fc"))
_PRODUCT_KINDS = frozenset(("gemm", "correlation", "deconv"))
_MOVING = FOLLOWERS | {"Cast"}
_LETTERS = 4
"""The length at which names of generated kernels cut the name of an operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one engine layer shows about a node, and why, in one clause.

    A `proof` stands whatever other layers show that hold parts of the same node.
    """

    honour: Honour
    reason: str
    proof: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of one node: its number, and the float type that it should compute in.

    `typed` tells whether the graph carries the plan as types; if not, its Casts say nothing.
    """

    number: int
    wanted: HighName
    typed: bool


def examine(graph: GraphNodes, kernel: Kernel, asked: Asked) -> Finding:
    """Return what `kernel` shows about the node that is asked about, which it holds."""
    found = _by_weights(graph, kernel, asked)
    if found is None and kernel.opaque:
        return _unseen(f"{_where(kernel)} is fused and does not show its inside")
    found = (
        found
        or _by_operands(graph, kernel, asked)
        or _by_single_type(graph, kernel, asked)
        or _by_conversions(graph, kernel, asked)
    )
    return found or _unseen(f"{_where(kernel)} does not show in which type it computes this one")


def _by_weights(graph: GraphNodes, kernel: Kernel, asked: Asked) -> Finding | None:
    """Look at the weights that the kernel holds: a builder that lowers a product rounds them."""
    own = graph.weights[asked.number]
    if not own or not kernel.weights:
        return None
    types = _own_weight_types(graph, kernel, max(own, key=lambda name: own[name]))
    if not types and graph.nodes[asked.number].op_type in _PRODUCTS and _is_product(kernel):
        types = float_types(kernel.weights)
    reason = f"its weights are {_listed(types)} in {_where(kernel)}"
    return _of_types(types, asked.wanted, reason, proof=True)


def _own_weight_types(graph: GraphNodes, kernel: Kernel, weight: str) -> frozenset[str]:
    """Return the types of the constants that can be this initializer, none where that is unclear.

    A constant that was not transformed keeps the initializer's name. Else every constant of that
    many elements may be it, if there are as many as initializers of that size in the kernel.
    """
    named = [c for c in kernel.weights if c.name.startswith(f"{weight}_constant")]
    if named:
        return float_types(named)
    sizes = {name: size for i in kernel.span for name, size in graph.weights[i].items()}
    alike = [c for c in kernel.weights if c.elements == sizes.get(weight)]
    rivals = [name for name, size in sizes.items() if size == sizes.get(weight)]
    return float_types(alike) if len(alike) >= len(rivals) else frozenset()


def _by_operands(graph: GraphNodes, kernel: Kernel, asked: Asked) -> Finding | None:
    """Look at what a product reads, where nothing can have been converted before."""
    products = [i for i in kernel.span if graph.nodes[i].op_type in _PRODUCTS]
    if asked.number not in products or (kernel.fused and len(products) > 1):
        return None
    if kernel.fused:
        starts = [i for i, o in enumerate(kernel.operations) if o in _PRODUCT_OPERATIONS]
        if len(starts) != 1 or CAST in kernel.operations[: starts[0]]:
            return None
    types = float_types(kernel.layer.inputs)
    if not kernel.fused and types != {asked.wanted}:
        types |= float_types(kernel.layer.outputs)
    # Weights that are not here may be in another layer, and this one the bias or a move only.
    proof = not graph.weights[asked.number]
    reason = f"{_where(kernel)} multiplies {_listed(types)}"
    return _of_types(types, asked.wanted, reason, proof=proof)


def _by_single_type(graph: GraphNodes, kernel: Kernel, asked: Asked) -> Finding | None:
    """Look at a kernel that reads, writes and holds one floating-point type only."""
    layer = kernel.layer
    types = float_types((*layer.inputs, *layer.outputs, *kernel.weights))
    nothing_low = asked.typed and kernel.span.isdisjoint(graph.low | graph.casts)
    if not kernel.converts_nothing and not (nothing_low and types == _FP32):
        return None
    if types != {asked.wanted} and not _is_shown(graph, kernel, asked.number):
        return None
    return _of_types(types, asked.wanted, f"{_where(kernel)} computes in {_listed(types)} only")


def _by_conversions(graph: GraphNodes, kernel: Kernel, asked: Asked) -> Finding | None:
    """Count conversions. Around products they do vanish, so that those are left to other rules."""
    if not asked.typed or graph.nodes[asked.number].op_type in _PRODUCTS:
        return None
    if not does_conversions_asked_for(graph, kernel, asked.number):
        return None
    return Finding(
        honour=Honour.HONOURED,
        reason=f"{_where(kernel)} misses none of the conversions that the plan asks for",
    )


def _of_types(
    types: frozenset[str], wanted: str, reason: str, *, proof: bool = False
) -> Finding | None:
    """Return the finding that these types alone give, None where they are mixed or unknown."""
    if types in ({wanted}, _FP32):
        return Finding(honour=Honour.HONOURED, reason=reason, proof=proof)
    if types and types <= LOW - {wanted}:
        return Finding(honour=Honour.DEMOTED, reason=reason, proof=proof)
    return None


def _unseen(reason: str) -> Finding:
    return Finding(honour=Honour.NOT_OBSERVABLE, reason=reason)


def _is_shown(graph: GraphNodes, kernel: Kernel, number: int) -> bool:
    """Tell whether the kernel is seen to compute this node.

    Builders drop what changes nothing, such as a product with one between two Casts, and list it
    all the same.
    """
    op_type = graph.nodes[number].op_type
    if not kernel.operations:
        computing = {i for i in kernel.span if graph.nodes[i].op_type not in _MOVING}
        return op_type in _PRODUCTS or computing <= {number}
    alike = sum(graph.nodes[i].op_type == op_type for i in kernel.span)
    return kernel.operations.count(op_type[:_LETTERS]) >= alike


def _is_product(kernel: Kernel) -> bool:
    return kernel.layer.kind in _PRODUCT_KINDS or not _PRODUCT_OPERATIONS.isdisjoint(
        kernel.operations
    )


def _listed(types: frozenset[str]) -> str:
    return " and ".join(sorted(types))


def _where(kernel: Kernel) -> str:
    return f"engine layer {printable(kernel.layer.name)!r}"
