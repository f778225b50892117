"""What does not lie in the layers: inputs, the file's own rounding, builders' warnings.

How many layers the FP32 form of a file needs is searched for, by the emulator.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from precision_bisect.errors import PrecisionBisectError, counted, first_of
from precision_bisect.explaining.advice.diagnosed_model import (
    Advising,
    DiagnosedModel,
    Editor,
    ModelChange,
)
from precision_bisect.explaining.diagnosis.extremes import extremes
from precision_bisect.explaining.diagnosis.findings import MOST_LISTED, Advice
from precision_bisect.explaining.diagnosis.out_of_range import out_of_range
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import KINDS, QUANTIZED
from precision_bisect.layer_table import Exclusion
from precision_bisect.options import DEFAULT_STRATEGY
from precision_bisect.plan import Plan
from precision_bisect.plugins import load_strategy
from precision_bisect.protocols import Problem, Search
from precision_bisect.runs.results.advised import ALREADY_ROUNDED, Tried
from precision_bisect.search.combinators import Batch, Outcomes, answered
from precision_bisect.trial import Proposal

MOST_SEARCHED = 256
"""Candidates of a form that is searched, at most. A limit of what the user waits."""


class _Late(Exception):
    """No further trial may be made: of the allowance, or of as many as the run's own."""


class _AsMany(Exception):
    """The model without its own rounding is not known to keep fewer layers than the run does."""


def never_reached(net: DiagnosedModel) -> Advising:
    """Yield the candidates whose outputs had one value only, over all samples."""
    still = net.watched.still
    layers = [
        str(layer.name)
        for layer in net.case.model.table.candidates
        if layer.outputs and all(still.get(name) is not None for name in layer.outputs)
    ]
    if layers:
        values = {still[net.view.by_name[name].output[0]] for name in layers}
        value = f"{values.pop():g}" if len(values) == 1 else "one value"
        yield Advice(
            id="inputs",
            title="Give inputs that reach these layers",
            text="Add samples for which they compute something: what they need is not known.",
            layers=layers,
            evidence=f"{first_of(layers, MOST_LISTED)} gave nothing but {value} in all "
            f"{counted(len(net.case.samples), 'sample')}",
        )


def quantized_beside(net: DiagnosedModel) -> Advising:
    """Yield the kept layers beside which the file itself quantizes.

    Nothing where the model without that was searched, and no plan of fewer layers was found.
    """
    rounding = {
        str(layer.name)
        for layer in net.case.model.table.layers
        if layer.exclusion is Exclusion.QUANTIZATION
    }
    layers, beside = [], ""
    for name, node in net.view.by_name.items():
        if name not in net.kept:
            continue
        makers = [net.view.maker.get(tensor, "") for tensor in node.input]
        near = [n for n in (*makers, *net.view.reading(node)) if n in rounding]
        if near:
            layers.append(name)
            beside = beside or near[0]
    if not layers:
        return
    try:
        tried = yield from _unrounded(net, layers)
    except _AsMany:
        return
    yield Advice(
        id=ALREADY_ROUNDED,
        title="Search the FP32 model: this one already rounds here",
        text="Export the model before it was quantized, and search that one.",
        layers=layers,
        evidence=f"{first_of(layers, MOST_LISTED)}: the file itself rounds beside it, at {beside}"
        f"{tried.clause() if tried else ''}",
        tried=tried,
    )


def _unrounded(net: DiagnosedModel, layers: Sequence[str]) -> Search[Tried | None]:
    """Return what the model comes to without its own rounding, None where that cannot be tried.

    Its reference is its own: without quantization it computes something else. Raises _AsMany.
    """
    editor = Editor(net.case.model.proto)
    editor.without_quantization()
    try:
        model = net.loaded(editor.edited(), "unrounded")
    except PrecisionBisectError:
        return None
    change = ModelChange(what=ALREADY_ROUNDED, model=model, own_reference=True)
    tried = yield from net.tried(net.kept.difference(layers), change)
    if tried is not None and tried.holds:
        return tried
    return (yield from _searched(net, model, change)) or tried


def _searched(net: DiagnosedModel, model: Model, change: ModelChange) -> Search[Tried | None]:
    """Search a changed model by the default strategy; return what its answer comes to.

    After as many trials as the run's own the least plan that passed is the answer. `before` is the
    number of candidates. None where it cannot be tried, or takes more than advice may take. Raises
    _AsMany where the answer keeps no fewer layers than the run's: it would not be told.
    """
    names, pair = model.table.names, net.case.pair
    if net.on_ladder or pair.low in QUANTIZED or not 0 < len(names) <= MOST_SEARCHED:
        return None
    least, left = Plan.all_high(len(names)), net.own_trials

    def judge(batch: Batch) -> Search[Outcomes]:
        nonlocal least, left
        outcomes = []
        for proposal in batch:
            if net.variants.allowance.spent or left <= 0:
                raise _Late
            outcomes.append((yield from net.judge(model, change, proposal.plan)))
            left -= 1
            if outcomes[-1].passed:
                least = min(least, proposal.plan)
        return tuple(outcomes)

    def beyond() -> Plan | None:
        measure = partial(extremes, model, net.case.fed, net.case.options.threads)
        return out_of_range(
            model, pair, net.case.fed, {}, measure, targets=net.case.options.targets
        )[0]

    problem = Problem(
        names=names,
        modules=model.table.modules,
        tolerance=net.case.comparator.tolerance,
        unit=KINDS[pair.low].unit,
        beyond_range=beyond,
    )
    try:
        plan = Plan.of(())
        (nothing,) = yield from judge((Proposal(plan=plan),))
        if not nothing.passed:
            search = load_strategy(DEFAULT_STRATEGY).search(problem)
            plan = yield from answered(search, judge)
    except PrecisionBisectError:
        return None
    except _Late:
        if net.variants.allowance.spent:
            return None
        plan = least
    if len(plan) >= len(net.kept):
        raise _AsMany
    tried = yield from net.tried([names[i] for i in plan.indices], change)
    return None if tried is None else replace(tried, before=len(names))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Warning:
    """A kind of remark: the pattern of its texts, and what to do about it."""

    id: str
    pattern: re.Pattern[str]
    text: str


_NORM = _Warning(
    id="tensorrt-layernorm",
    pattern=re.compile(r"[Rr]unning layernorm|Detected layernorm nodes"),
    text="Export at opset 17 or newer so that the norm is one operator, or search with "
    "--fuse-norms.",
)
_WEIGHTS = _Warning(
    id="tensorrt-weights",
    pattern=re.compile(r"weights.*(affected|outside the range)"),
    text="Train with weight decay or rescale these weights, or keep the layers that read them.",
)
_DISOBEYED = _Warning(
    id="tensorrt-disobeyed",
    pattern=re.compile(r"No implementation.*obeys|non-conforming|No valid obedient"),
    text="Build model.mixed.onnx strongly typed: types are no requests there.",
)


def builder_warnings(net: DiagnosedModel) -> Advising:
    """Yield what TensorRT warned of in any build, with the layers that it named.

    Where it named none, those that it can mean.
    """
    norms = [
        name for decomposed in net.decomposed if decomposed.squares for name in decomposed.members
    ]
    heavy = [
        finding.layer
        for finding in net.findings.layers
        if finding.figures.get("largest_in") == "weight"
    ]
    for kind, layers in ((_NORM, norms), (_WEIGHTS, heavy), (_DISOBEYED, ())):
        # Builds differ in their counts, which make no new remark.
        notes = {re.sub(r"\d+", "", n): n for n in net.notes if kind.pattern.search(n)}
        if notes:
            yield Advice(
                id=kind.id,
                title="What TensorRT warned of",
                text=kind.text,
                layers=_named(net, kind) or [name for name in layers if name in net.kept],
                evidence=f"the builder says: {'; '.join(notes.values())}",
            )


def _named(net: DiagnosedModel, kind: _Warning) -> list[str]:
    """Return the layers that remarks of this kind name, or whose weights they list."""
    listed = {
        name for remark in net.listed if kind.pattern.search(remark.note) for name in remark.names
    }
    readers = {node.name for node in net.view.nodes if not listed.isdisjoint(node.input)}
    weightless = (re.sub(r"\.(weight|bias)$", "", name) for name in sorted(listed))
    text = "\n".join((*(n for n in net.notes if kind.pattern.search(n)), *weightless))
    return [name for name in net.by_name if name in readers or _names(text, name)]


def _names(text: str, name: str) -> bool:
    """Tell whether a text mentions a layer's name as a whole word."""
    return re.search(rf"(?<![\w./]){re.escape(name)}(?![\w./])", text) is not None
