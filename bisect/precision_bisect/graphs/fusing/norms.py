"""Finds norms, Softmax and Gelu in pieces, in the spellings that exporters use.

The quotient of a norm may be a division by a root, or a product with its reciprocal. The square
may be a power or a product, the axes an attribute or an input. Scale and bias may be missing.
LayerNorm: Ba, Kiros, Hinton, "Layer Normalization" (2016), eq. 4. RMSNorm: Zhang, Sennrich
(NeurIPS 2019), eq. 4. GroupNorm: Wu, He (ECCV 2018), eq. 7.

A Softmax or Gelu is found from the node that each spelling has: a quotient, an Erf, a Tanh. Gelu:
Hendrycks, Gimpel, "Gaussian Error Linear Units" (2016), section 2, exact and by tanh.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import onnx

from precision_bisect.graphs.load import Model
from precision_bisect.graphs.node_views import Reduced, View
from precision_bisect.layer_table import LayerName, scope_of

Kind: TypeAlias = Literal[
    "LayerNormalization", "RMSNormalization", "GroupNormalization", "Softmax", "Gelu"
]

SINCE: dict[Kind, int] = {
    "LayerNormalization": 17,
    "RMSNormalization": 23,
    "GroupNormalization": 21,
    "Softmax": 13,
    "Gelu": 20,
}
"""The opset from which on each operator means what it is written for here.

Opset 18 has a GroupNormalization, too, but with a scale per group. Softmax before 13 flattens its
input.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposed:
    """One operator in pieces: from the tensor `source` to `output`, by the nodes `members`.

    `axes` are those it works along, counted from the last, -1, of `rank` in all, 0 if that is not
    known. `size` has the sizes along them, None if one is not known. `scale` and `bias` name
    constants, "" for none. `groups` is for GroupNormalization, `approximate` for Gelu. `squares`
    is the tensor that holds squares, "" for none, and `centred` the tensor that is squared.
    `members` are in network order.
    """

    kind: Kind
    source: str
    output: str
    members: tuple[LayerName, ...]
    axes: tuple[int, ...] = ()
    rank: int = 0
    size: tuple[int, ...] | None = None
    epsilon: float = 0.0
    epsilon_name: str = ""
    scale: str = ""
    bias: str = ""
    groups: int = 0
    approximate: str = "none"
    squares: str = ""
    centred: str = ""

    @property
    def module(self) -> str:
        """The name scope of the last node."""
        return scope_of(self.members[-1])


# Relative difference of a constant from the exact one: exporters write three to eight digits.
_CLOSE = 1e-3
# The cubic coefficient of Gelu's approximation by tanh.
_CUBIC = 0.044715


def find_decomposed(model: Model) -> list[Decomposed]:
    """Return every norm, Softmax and Gelu in pieces, in network order of their last nodes."""
    view = View(model)
    order = {out: i for i, node in enumerate(view.nodes) for out in node.output}
    return sorted((*norms(view), *activations(view)), key=lambda operator: order[operator.output])


def norms(view: View) -> Iterator[Decomposed]:
    """Yield every norm in pieces, in network order."""
    for node in view.nodes:
        for centred, variance, chain in _over_root(view, node):
            core = _core(view, node, centred, variance, chain)
            if core is not None:
                yield _grouped(view, core) or _affine(view, core)
                break


def _quotients(
    view: View, node: onnx.NodeProto
) -> Iterator[tuple[str, str, list[onnx.NodeProto]]]:
    """Yield (a, b, nodes) where the node computes a / b, or the product of a with 1 / b."""
    if node.op_type == "Div":
        yield node.input[0], node.input[1], [node]
    for i, j in ((0, 1), (1, 0)) if node.op_type == "Mul" else ():
        inverse = view.made_by(node.input[j], "Reciprocal", "Div")
        if inverse is not None and (
            inverse.op_type == "Reciprocal" or view.scalar(inverse.input[0]) == 1.0
        ):
            yield node.input[i], inverse.input[-1], [inverse, node]


def _over_root(
    view: View, node: onnx.NodeProto
) -> Iterator[tuple[str, str, list[onnx.NodeProto]]]:
    """Yield (a, v, nodes) where the node computes a / sqrt(v)."""
    for above, below, nodes in _quotients(view, node):
        root = view.made_by(below, "Sqrt", "Pow")
        if root is not None and (root.op_type == "Sqrt" or view.scalar(root.input[1]) == 0.5):
            yield above, root.input[0], [root, *nodes]
    for i, j in ((0, 1), (1, 0)) if node.op_type == "Mul" else ():
        root = view.made_by(node.input[j], "Pow", "Sqrt")
        if root is not None and root.op_type == "Pow" and view.scalar(root.input[1]) == -0.5:
            yield node.input[i], root.input[0], [root, node]
        under = None if root is None else view.made_by(root.input[0], "Reciprocal")
        if root is not None and under is not None and root.op_type == "Sqrt":
            yield node.input[i], under.input[0], [under, root, node]


def _core(
    view: View, node: onnx.NodeProto, centred: str, variance: str, chain: list[onnx.NodeProto]
) -> Decomposed | None:
    """Return the norm without scale and bias that ends with the node."""
    epsilon, epsilon_name = 0.0, ""
    add = view.made_by(variance, "Add")
    # An epsilon may be missing, or be added to the variance.
    if add is not None:
        constant = next(iter(view.with_scalar(add)), None)
        if constant is None:
            return None
        variance, epsilon = constant
        epsilon_name = next(name for name in add.input if name != variance)
        chain = [add, *chain]
    mean = view.reduced(variance, "ReduceMean")
    squared = None if mean is None else view.square(mean.source)
    if mean is None or squared is None or epsilon < 0:
        return None
    # What is averaged must be the square of what is divided, or it is no norm.
    before = _centring(view, centred, squared[0], mean)
    if before is None:
        return None
    kind, source, subtraction = before
    shape = view.shape(source) or view.shape(centred) or ()
    sizes = [shape[axis] if shape else None for axis in mean.axes]
    return Decomposed(
        kind="LayerNormalization" if kind else "RMSNormalization",
        source=source,
        output=node.output[0],
        members=view.in_order(
            {member.name for member in (*subtraction, squared[1], mean.node, *chain)}
        ),
        axes=mean.axes,
        rank=len(shape),
        size=None if None in sizes else tuple(size for size in sizes if size is not None),
        epsilon=epsilon,
        epsilon_name=epsilon_name,
        squares=mean.source,
        centred=squared[0],
    )


def _centring(
    view: View, numerator: str, squared: str, variance: Reduced
) -> tuple[bool, str, list[onnx.NodeProto]] | None:
    """Return whether the mean is subtracted, from which tensor, and by which nodes."""
    differences = [
        _minus(view, name, variance.axes, "ReduceMean") for name in (numerator, squared)
    ]
    if differences[0] is None or differences[1] is None:
        return (False, squared, []) if numerator == squared else None
    # Some exporters subtract once for the square and once more for the quotient.
    (source, nodes), (other, more) = differences[0], differences[1]
    return (True, source, [*nodes, *more]) if source == other else None


def _minus(
    view: View, name: str, axes: tuple[int, ...], reduction: str
) -> tuple[str, list[onnx.NodeProto]] | None:
    """Return the tensor whose mean, or largest value, is subtracted here, with the nodes."""
    node = view.made_by(name, "Sub")
    reduced = None if node is None else view.reduced(node.input[1], reduction)
    if node is None or reduced is None or reduced.axes != axes or reduced.source != node.input[0]:
        return None
    return reduced.source, [reduced.node, node]


def _affine(view: View, core: Decomposed) -> Decomposed:
    """Return the norm with the scale and bias that follow it, where they fit the operator."""
    norm = core
    # ONNX's RMSNormalization has no bias.
    for op_type in ("Mul",) if core.kind == "RMSNormalization" else ("Mul", "Add"):
        node = view.sole_reader(norm.output, op_type)
        name = None if node is None else _other(node, norm.output)
        size = None if name is None else _fits(view, name, norm)
        if node is None or name is None or size is None:
            break
        norm = replace(
            norm,
            size=size,
            scale=name if op_type == "Mul" else norm.scale,
            bias=name if op_type == "Add" else norm.bias,
            output=node.output[0],
            members=(*norm.members, LayerName(node.name)),
        )
    return norm


def _other(node: onnx.NodeProto, name: str) -> str | None:
    others = [other for other in node.input if other != name]
    return others[0] if len(others) == 1 else None


def _fits(view: View, name: str, core: Decomposed) -> tuple[int, ...] | None:
    """Return the sizes, along the axes, of a constant that varies only along them; else None."""
    array = view.array(name)
    if array is None or array.dtype != np.float32 or 0 < core.rank < array.ndim:
        return None
    shape = (1,) * (-core.axes[0] - array.ndim) + array.shape
    along = tuple(shape[axis] for axis in core.axes)
    if np.prod(along) != array.size or (core.size is not None and core.size != along):
        return None
    # If the sizes are not known, one element may stand for any number of them.
    return None if core.size is None and 1 in along else along


def _grouped(view: View, core: Decomposed) -> Decomposed | None:
    """Return the GroupNorm around this core: between two Reshapes, then scaled by channel."""
    into = view.made_by(core.source, "Reshape")
    out = view.sole_reader(core.output, "Reshape")
    if into is None or out is None or core.kind != "LayerNormalization":
        return None
    inner, outer = view.shape(core.source), view.shape(into.input[0])
    back = view.shape(out.output[0])
    # Axis 0 is the batch, axis 1 the group; the norm goes over all others.
    if inner is None or outer is None or core.axes != tuple(range(2 - core.rank, 0)):
        return None
    if back is not None and len(back) != len(outer):
        return None
    channels, groups = outer[1] if len(outer) > 2 else None, inner[1]
    if not groups or not channels or channels % groups:
        return None
    whole = replace(
        core,
        kind="GroupNormalization",
        source=into.input[0],
        output=out.output[0],
        groups=groups,
        axes=(1 - len(outer),),
        rank=len(outer),
        size=(channels,),
        members=view.in_order({into.name, out.name, *core.members}),
    )
    return _affine(view, whole)


def activations(view: View) -> Iterator[Decomposed]:
    """Yield every Softmax and Gelu in pieces, in network order of their first piece found."""
    for node in view.nodes:
        operator = None
        if node.op_type in ("Div", "Mul"):
            operator = _softmax(view, node)
        elif node.op_type in ("Erf", "Tanh"):
            operator = _gelu(view, node)
        if operator is not None:
            yield operator


def _softmax(view: View, node: onnx.NodeProto) -> Decomposed | None:
    """Return the softmax that ends with a quotient of exponentials and their sum."""
    for above, below, chain in _quotients(view, node):
        total = view.reduced(below, "ReduceSum")
        power = view.made_by(above, "Exp")
        if total is None or power is None or total.source != power.output[0]:
            continue
        if len(total.axes) != 1:
            continue
        # Exporters subtract the largest value first; a softmax without that is one as well.
        below_peak = _minus(view, power.input[0], total.axes, "ReduceMax")
        source, shifted = below_peak or (power.input[0], [])
        shape = view.shape(total.source) or view.shape(source) or ()
        nodes = [*shifted, power, total.node, *chain]
        return Decomposed(
            kind="Softmax",
            source=source,
            output=node.output[0],
            members=view.in_order({member.name for member in nodes}),
            axes=total.axes,
            rank=len(shape),
        )
    return None


def _gelu(view: View, inner: onnx.NodeProto) -> Decomposed | None:
    """Return the Gelu around an Erf or Tanh: x times a half times (1 + f)."""
    if inner.op_type == "Erf":
        source = _scaled_source(view, inner.input[0], math.sqrt(0.5))
    else:
        source = _cubic_source(view, inner.input[0])
    plus = view.sole_reader(inner.output[0], "Add")
    if source is None or plus is None or (inner.output[0], 1.0) not in view.with_scalar(plus):
        return None
    stop = frozenset((source, plus.output[0]))
    end = plus.output[0]
    # The three factors x, 0.5 and 1 + f come in any order, in two or three products.
    for _ in range(3):
        readers = view.readers.get(end, [])
        if len(readers) != 1 or readers[0].op_type not in ("Mul", "Div"):
            return None
        end = readers[0].output[0]
        names, factor = _factors(view, end, stop)
        if sorted(names) == sorted(stop) and math.isclose(factor, 0.5, rel_tol=_CLOSE):
            return Decomposed(
                kind="Gelu",
                source=source,
                output=end,
                members=_between(view, source, end),
                approximate="none" if inner.op_type == "Erf" else "tanh",
            )
    return None


def _scaled_source(view: View, name: str, factor: float) -> str | None:
    """Return the tensor that gives `name` by a product with the factor, or a quotient."""
    node = view.made_by(name, "Mul", "Div")
    if node is None:
        return None
    for source, value in view.with_scalar(node):
        multiplier = value if node.op_type == "Mul" else 1 / value if value else 0.0
        if math.isclose(multiplier, factor, rel_tol=_CLOSE):
            return source
    return None


def _cubic_source(view: View, name: str) -> str | None:
    """Return x where the factors are sqrt(2/pi) and x + 0.044715 x^3."""
    names, factor = _factors(view, name, frozenset())
    if len(names) != 1 or not math.isclose(factor, math.sqrt(2 / math.pi), rel_tol=_CLOSE):
        return None
    sum_ = view.made_by(names[0], "Add")
    for i, j in ((0, 1), (1, 0)) if sum_ is not None else ():
        assert sum_ is not None
        source = sum_.input[i]
        cubed, cubic = _factors(view, sum_.input[j], frozenset((source,)))
        if cubed == [source] * 3 and math.isclose(cubic, _CUBIC, rel_tol=_CLOSE):
            return source
    return None


def _factors(view: View, name: str, stop: frozenset[str]) -> tuple[list[str], float]:
    """Return the tensors and the number whose product a tensor is; `stop` is not taken apart."""
    constant = view.scalar(name)
    if constant is not None:
        return [], constant
    node = None if name in stop else view.made_by(name, "Mul", "Div", "Pow")
    if node is None:
        return [name], 1.0
    exponent = view.scalar(node.input[1])
    if node.op_type == "Pow":
        if exponent not in (2.0, 3.0):
            # A third power may be written as a Pow of a product.
            return [name], 1.0
        names, factor = _factors(view, node.input[0], stop)
        return names * int(exponent), factor ** int(exponent)
    if node.op_type == "Div" and not exponent:
        return [name], 1.0
    names, factor = _factors(view, node.input[0], stop)
    if node.op_type == "Div":
        assert exponent
        return names, factor / exponent
    more, other = _factors(view, node.input[1], stop)
    return names + more, factor * other


def _between(view: View, source: str, end: str) -> tuple[LayerName, ...]:
    """Return the computing nodes between two tensors, in network order."""
    wanted: set[str] = set()
    pending = [end]
    while pending:
        name = pending.pop()
        node = None if name == source else view.made_by(name, *_GELU_NODES)
        if node is not None and node.name not in wanted:
            wanted.add(node.name)
            pending.extend(node.input)
    return view.in_order(wanted)


_GELU_NODES = ("Mul", "Div", "Add", "Pow", "Erf", "Tanh")
