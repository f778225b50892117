"""Whether a built engine computes the kept layers high: a verdict and its evidence for each.

TensorRT-RTX turns an FP32 product that stands alone between low layers into a low kernel and says
nothing. What it built shows in the text that it gives of its engine; `rules` has what counts as
evidence.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache, partial

from precision_bisect.backends.inspection.engine_kernels import Kernel, find_kernels
from precision_bisect.backends.inspection.engine_layers import EngineLayer
from precision_bisect.backends.inspection.graph_nodes import GraphNodes
from precision_bisect.backends.inspection.inner_products import HOLDERS, InnerProducts
from precision_bisect.backends.inspection.rules import AskedType, Observation, computes, type_shown
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.typed.typed_graph import TypedGraph
from precision_bisect.layer_table import Exclusion, LayerName, LayerTable
from precision_bisect.plan import Plan
from precision_bisect.precisions import HighName, Pair
from precision_bisect.trial import Honour, LayerHonour


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
        asked = AskedType(number=number, wanted=wanted, typed=typed is not None, rtx=rtx)
        if number >= 0 and graph.nodes[number].op_type in HOLDERS:
            findings = [inner().examine(asked)]
        else:
            # A Reformat that lists the node says nothing of the type that it is computed in.
            computing = [each for each in holders[number] if computes(graph, each, number)]
            findings = [type_shown(graph, kernel, asked) for kernel in computing]
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
