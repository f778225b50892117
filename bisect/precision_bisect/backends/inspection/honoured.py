"""Whether a built engine computes the kept layers high: a verdict and its evidence for each.

TensorRT-RTX turns an FP32 product that stands alone between low layers into a low kernel and says
nothing. What it built shows in the text that it gives of its engine; `rules` has what counts as
evidence.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain, product

from precision_bisect.backends.inspection.engine_kernels import (
    CAST,
    GraphNodes,
    Kernel,
    find_kernels,
    float_types,
    unlisted_kernel,
)
from precision_bisect.backends.inspection.engine_layers import (
    BELOW_FP32,
    EngineLayer,
    EngineTensor,
)
from precision_bisect.backends.inspection.rules import (
    PRODUCT_OPERATIONS,
    PRODUCTS,
    AskedType,
    Observation,
    computes,
    is_product,
    type_shown,
)
from precision_bisect.errors import printable
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.typed.typed_graph import TypedGraph
from precision_bisect.layer_table import Exclusion, LayerName, LayerTable
from precision_bisect.plan import Plan
from precision_bisect.precisions import HighName, Pair
from precision_bisect.trial import Honour, LayerHonour

_RECURRENT = frozenset(("GRU", "LSTM", "RNN"))
_FUSED_ATTENTION = "_gemm_mha"
HOLDERS = _RECURRENT | {"Attention"}
"""Operators with products inside."""
# Positions of a recurrence's weights, of what it reads and of its state.
_WEIGHTS = (1, 2)
_ATTENTION_PRODUCTS = 2


class InnerProducts:
    """The products of an engine, by the node inside which they are. `kernels` list nodes.

    Builders make recurrences and Attention of many layers, and most of these list no node at all.
    So a layer that lists the node proves nothing by itself, such as one that sums the biases. What
    counts is the products: those that list the node, and those that can be no other node's by what
    they read and who reads them.
    """

    def __init__(
        self, graph: GraphNodes, layers: Sequence[EngineLayer], kernels: Sequence[Kernel]
    ) -> None:
        self._graph = graph
        self._layers = layers
        self._listed = {id(kernel.layer): kernel for kernel in kernels}
        self._claimed = {number for kernel in kernels for number in kernel.span}
        self._makers = _by_tensor(layers, lambda layer: layer.outputs)
        self._readers = _by_tensor(layers, lambda layer: layer.inputs)
        self._found: dict[int, list[Kernel]] = defaultdict(list)
        for layer in layers:
            kernel = self._listed.get(id(layer)) or unlisted_kernel(layer)
            if is_product(kernel) or layer.name.startswith(_FUSED_ATTENTION):
                owners = self._owners(kernel)
                if len(owners) == 1:
                    self._found[owners.pop()].append(kernel)

    def examine(self, request: AskedType) -> Observation:
        """Return what the products inside a node show."""
        kernels = self._found[request.number]
        if not kernels:
            return Observation(
                honour=Honour.NOT_OBSERVABLE, reason="no engine layer is seen to do its products"
            )
        wanted = frozenset((request.wanted, "fp32"))
        types = [_multiplied(kernel) for kernel in kernels]
        # One kernel that multiplies below FP32 is proof enough, whatever the others show.
        for kernel, read in zip(kernels, types, strict=True):
            if read and read <= BELOW_FP32 - wanted:
                return Observation(
                    honour=Honour.DEMOTED,
                    reason=f"engine layer {_name(kernel)} multiplies {' and '.join(sorted(read))}",
                )
        many = f"{len(kernels)} engine layers, such as {_name(kernels[0])}"
        if not all(read and read <= wanted for read in types):
            honour, reason = Honour.NOT_OBSERVABLE, f"{many}, do not all show what they multiply"
        elif not self._complete(request.number, kernels):
            honour, reason = Honour.NOT_OBSERVABLE, f"{many}, are not all of its products"
        else:
            type_names = " and ".join(sorted(frozenset().union(*types)))
            honour, reason = Honour.HONOURED, f"{many}, multiply {type_names}"
        return Observation(honour=honour, reason=reason)

    def _owners(self, kernel: Kernel) -> set[int]:
        """Return the nodes that a product can belong to."""
        if kernel.span:
            return {n for n in kernel.span if self._op_type(n) in PRODUCTS | HOLDERS}
        before = self._nearest(kernel.layer, self._makers, lambda layer: layer.inputs)
        after = self._nearest(kernel.layer, self._readers, lambda layer: layer.outputs)
        ends = {n for neighbour in before for n in self._graph.last_of(neighbour.span)}
        ends |= {n for neighbour in after for n in self._graph.first_of(neighbour.span)}
        among = ends | self._graph.between(ends, -1) if ends else set()
        # A product that has engine layers of its own needs no other.
        return {
            n
            for n in among
            if self._op_type(n) in HOLDERS
            or (self._op_type(n) in PRODUCTS and n not in self._claimed)
        }

    def _nearest(
        self,
        start: EngineLayer,
        neighbours: Mapping[str, Sequence[EngineLayer]],
        tensors: Callable[[EngineLayer], Iterable[EngineTensor]],
    ) -> Iterator[Kernel]:
        """Yield the first layers that list nodes on each way from a layer."""
        pending, visited = [start], {id(start)}
        while pending:
            for tensor in tensors(pending.pop()):
                for layer in neighbours.get(tensor.name, ()):
                    if id(layer) in visited:
                        continue
                    visited.add(id(layer))
                    if id(layer) in self._listed:
                        yield self._listed[id(layer)]
                    else:
                        pending.append(layer)

    def _complete(self, number: int, kernels: Sequence[Kernel]) -> bool:
        """Tell whether these are all products of a node, by their number or their weights."""
        if self._op_type(number) not in _RECURRENT:
            return len(kernels) >= _ATTENTION_PRODUCTS
        weight_sizes = {c.name: c.elements for kernel in kernels for c in kernel.weights}
        node, sizes = self._graph.nodes[number], self._graph.weights[number]
        read = [sizes.get(node.input[i], 0) for i in _WEIGHTS]
        # Builders may hold those of a GRU's hidden gate by themselves.
        ways = [[(n,), (n - n // 3, n // 3)][: 1 + (node.op_type == "GRU")] for n in read]
        return all(read) and any(
            Counter(chain(*way)) <= Counter(weight_sizes.values()) for way in product(*ways)
        )

    def _op_type(self, number: int) -> str:
        return self._graph.nodes[number].op_type


def _multiplied(kernel: Kernel) -> frozenset[str]:
    """Return the float types that a product multiplies, without any where that is not shown."""
    read = float_types((*kernel.layer.inputs, *kernel.weights))
    if not kernel.fused or kernel.layer.name.startswith(_FUSED_ATTENTION):
        return read
    names = kernel.operations
    first = next((i for i, name in enumerate(names) if name in PRODUCT_OPERATIONS), 0)
    return frozenset() if kernel.unlisted or CAST in names[:first] else read


def _by_tensor(
    layers: Iterable[EngineLayer], tensors: Callable[[EngineLayer], Iterable[EngineTensor]]
) -> Mapping[str, Sequence[EngineLayer]]:
    layers_by_tensor = defaultdict(list)
    for layer in layers:
        for tensor in tensors(layer):
            layers_by_tensor[tensor.name].append(layer)
    return layers_by_tensor


def _name(kernel: Kernel) -> str:
    return repr(printable(kernel.layer.name))


def judge_layers(
    model: Model,
    plan: Plan,
    typed: TypedGraph | None,
    engine_layers: Sequence[EngineLayer],
    pair: Pair,
    *,
    rtx: bool = True,
) -> list[LayerHonour]:
    """Return a verdict for each layer that `plan` keeps, in network order.

    Layers that are fixed above the pair's high type are judged, too. `typed` is the strongly typed
    graph that the engine was built from, None if the layers of `model` were marked instead (weak
    typing). `rtx` tells whether the engine is one of TensorRT-RTX. A layer is honoured or demoted
    only on evidence: that the engine computes it in the type asked for or in FP32, or in a lower
    type. Everything else is not observable.
    """
    graph = GraphNodes(model.proto if typed is None else typed.proto)
    kernels = find_kernels(graph, engine_layers)
    holders: dict[int, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        for number in kernel.span:
            holders[number].append(kernel)
    nothing = _why_nothing(engine_layers)
    inner = cache(partial(InnerProducts, graph, engine_layers, kernels))
    verdicts = []
    for name, wanted in _judged(model.table, plan, pair):
        number = graph.index.get(name, -1)
        request = AskedType(number=number, wanted=wanted, typed=typed is not None, rtx=rtx)
        if number >= 0 and graph.nodes[number].op_type in HOLDERS:
            findings = [inner().examine(request)]
        else:
            # A Reformat that lists the node says nothing of the type that it is computed in.
            computing = [kernel for kernel in holders[number] if computes(graph, kernel, number)]
            findings = [type_shown(graph, kernel, request) for kernel in computing]
        verdict = _weigh(findings, nothing, bool(holders[number]))
        verdicts.append(
            LayerHonour(
                layer=name,
                honoured=verdict.honour,
                evidence=f"{verdict.reason}.",
                found=bool(findings),
            )
        )
    return verdicts


def _judged(table: LayerTable, plan: Plan, pair: Pair) -> Iterator[tuple[LayerName, HighName]]:
    """Yield the layers to judge, each with the type that it should compute in."""
    kept = {table.names[index] for index in plan.indices}
    for layer in table.layers:
        fixed = layer.fixed
        if layer.name in kept or (layer.exclusion is Exclusion.ASKED and fixed == pair.high_form):
            yield layer.name, pair.high
        # A rung between two low types leaves what earlier rungs fixed in FP32, which must hold,
        # too.
        elif fixed and fixed.quantized is None and fixed.stored == "fp32" != pair.high:
            yield layer.name, "fp32"


def _why_nothing(layers: Sequence[EngineLayer]) -> str:
    """Return why no engine layer tells anything about a node."""
    if any(layer.nodes for layer in layers):
        return "no engine layer lists it: it was folded, or fused into another one"
    if any(layer.inputs or layer.outputs for layer in layers):
        return "the engine gives types, and not which nodes its layers come from"
    return "the engine gives no details of its layers"


def _weigh(findings: Sequence[Observation], nothing: str, listed: bool) -> Observation:
    """Return the verdict on one node from what each engine layer that holds it shows."""
    proofs = [finding for finding in findings if finding.proof]
    # Proofs outweigh everything else; without them all findings must agree.
    honours = {finding.honour for finding in proofs or findings}
    if len(honours) == 1:
        return (proofs or list(findings))[0]
    if honours:
        reason = "the engine layers that hold it do not agree"
    elif listed:
        reason = "no engine layer that lists it is seen to compute it"
    else:
        reason = nothing
    return Observation(honour=Honour.NOT_OBSERVABLE, reason=reason)
