"""Finds Softmax and Gelu that were exported in pieces.

It starts at the one node that every spelling has (a quotient, an Erf, a Tanh) and works outwards.
Gelu: Hendrycks, Gimpel, "Gaussian Error Linear Units" (2016), section 2, exact and by tanh.
"""

import math
from collections.abc import Iterator

import onnx

from precision_bisect.graphs.fusing.found import Decomposed
from precision_bisect.graphs.node_views import View
from precision_bisect.layer_table import LayerName

_CLOSE = 1e-3
"""Relative difference of a constant from the exact one: exporters write three to eight digits."""
_CUBIC = 0.044715
"""The cubic coefficient of Gelu's approximation by tanh."""


def activations(view: View) -> Iterator[Decomposed]:
    """Yield every Softmax and Gelu in pieces, in network order of their first piece found."""
    for node in view.nodes:
        found = None
        if node.op_type in ("Div", "Mul"):
            found = _softmax(view, node)
        elif node.op_type in ("Erf", "Tanh"):
            found = _gelu(view, node)
        if found is not None:
            yield found


def _softmax(view: View, node: onnx.NodeProto) -> Decomposed | None:
    """Return the softmax that ends with a quotient of exponentials and their sum."""
    # A product may have its operands in either order, a quotient may not.
    for i, j in ((0, 1),) if node.op_type == "Div" else ((0, 1), (1, 0)):
        below, chain = node.input[j], [node]
        if node.op_type == "Mul":
            inverse = view.made_by(below, "Reciprocal")
            if inverse is None:
                continue
            below, chain = inverse.input[0], [inverse, node]
        total = view.reduced(below, "ReduceSum")
        power = view.made_by(node.input[i], "Exp")
        if total is None or power is None or total.source != power.output[0]:
            continue
        if len(total.axes) != 1:
            continue
        source, shifted = _unshifted(view, power.input[0], total.axes)
        shape = view.shape(total.source) or view.shape(source) or ()
        nodes = [*shifted, power, total.node, *chain]
        return Decomposed(
            kind="Softmax",
            source=source,
            output=node.output[0],
            members=view.in_order({each.name for each in nodes}),
            axes=total.axes,
            rank=len(shape),
        )
    return None


def _unshifted(view: View, name: str, axes: tuple[int, ...]) -> tuple[str, list[onnx.NodeProto]]:
    """Return the tensor whose largest value is subtracted, with the nodes; else the tensor."""
    node = view.made_by(name, "Sub")
    peak = None if node is None else view.reduced(node.input[1], "ReduceMax")
    if node is None or peak is None or peak.source != node.input[0] or peak.axes != axes:
        return name, []
    return peak.source, [peak.node, node]


def _gelu(view: View, inner: onnx.NodeProto) -> Decomposed | None:
    """Return the Gelu around an Erf or Tanh: x times a half times (1 + f)."""
    argument = _factors(view, inner.input[0], frozenset())
    if inner.op_type == "Erf":
        source = _scaled_source(view, inner.input[0], math.sqrt(0.5))
    else:
        source = _cubic_source(view, argument)
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
        found = value if node.op_type == "Mul" else 1 / value if value else 0.0
        if math.isclose(found, factor, rel_tol=_CLOSE):
            return source
    return None


def _cubic_source(view: View, argument: tuple[list[str], float]) -> str | None:
    """Return x where the factors are sqrt(2/pi) and x + 0.044715 x^3."""
    names, factor = argument
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
