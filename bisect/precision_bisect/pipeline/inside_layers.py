"""What no sample feels inside the layers of an answer, and where engines differ."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from precision_bisect.backends.emulation.semantics import whole_kernels
from precision_bisect.errors import ModelError, counted, first_of
from precision_bisect.explaining.diagnosis.extremes import born_not_finite
from precision_bisect.explaining.diagnosis.inner_sums import inner_sums
from precision_bisect.explaining.diagnosis.instrument import Instrument
from precision_bisect.explaining.diagnosis.watched_tensors import births, broken_under
from precision_bisect.graphs.fp32_outputs import ReferenceSession, non_finite, not_finite
from precision_bisect.graphs.graph import captured
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.graphs.module_names import by_torch_export
from precision_bisect.graphs.node_views import View
from precision_bisect.judging.inputs.loops import FunctionLoop, recorded
from precision_bisect.layer_table import Layer
from precision_bisect.machine.stopping import STOPS, until
from precision_bisect.pipeline.judged_answer import kept_names
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.plan import Plan
from precision_bisect.runs.results.curve_of_result import CurvePoint
from precision_bisect.runs.results.other_targets import InnerSum
from precision_bisect.search.case import Case
from precision_bisect.settings.targets import FUSED

# What small additions keep from 0.
_GUARDED = ("Div", "Reciprocal", "Log", "Pow")
LOOKED_AT = 2
"""Samples in which NaN and Inf are looked for inside. A bound on time."""


def sums_inside(prepared: Prepared, plan: Plan, *, late: bool) -> list[InnerSum]:
    """Return the low layers of an answer whose sums an engine loses that adds in FP16.

    Engines are asked themselves, and no other type is added in.
    """
    case = prepared.case
    if not prepared.backend.emulated or case.options.low != "fp16" or late:
        return []
    extremes = prepared.seen()
    if extremes is None:
        return []
    kept = set(plan.kept)
    low = (name for i, name in enumerate(case.model.table.names) if i not in kept)
    return inner_sums(
        case.model,
        extremes,
        case.fed,
        frozenset(map(str, low)),
        LOW_TYPES["fp16"].largest,
        case.options.threads,
    )


def sums_remarks(sums: Sequence[InnerSum]) -> list[str]:
    """Say in which layers sums are lost where they are added in FP16; one sentence or none."""
    if not sums:
        return []
    first = max(sums, key=lambda inner_sum: inner_sum.partial)
    within = first.partial <= LOW_TYPES["fp16"].largest
    lost = "loses their digits" if within else "overflows"
    return [
        f"sums inside {counted(len(sums), 'low layer')} are lost by an engine that "
        f"adds in FP16: in {first.layer} partial sums reach {first.partial:,.0f} for results up "
        f"to {first.result:.3g}, which {lost} there; they were taken as added in FP32, as in "
        "tensor cores"
    ]


def hidden_rows(prepared: Prepared) -> Sequence[str]:
    """Return the layers that read a row which a mask hides whole, if the run has looked."""
    extremes = prepared.seen() if prepared.backend.emulated else None
    return () if extremes is None else extremes.hidden


def hidden_remarks(layers: Sequence[str], model: Model) -> list[str]:
    """Say that engines differ in rows that a mask hides whole; one sentence or none."""
    if not layers:
        return []
    exported = (
        "; the file is not the module: torch.onnx.export(dynamo=True) writes FP32's lowest for a "
        "boolean mask, and PyTorch gives 0 for such a row; dynamo=False keeps that"
    )
    return [
        f"a mask hides whole rows from {first_of(layers)}: engines differ there, whatever the "
        "precision (ONNX Runtime's Attention gives 0, the same written out the mean of all values)"
        + exported
        * by_torch_export(model.proto)
    ]


def reference_trouble(case: Case) -> str:
    """Say where a reference has NaN or Inf, where they are born, and what to do; "" without any.

    The exporter by `torch.export` leaves out additions of up to 1e-8, which guard divisions.
    """
    trouble = non_finite(case.reference)
    if not trouble:
        return ""
    sample = next(
        sample
        for sample, outputs in zip(case.samples, case.reference, strict=True)
        if non_finite([outputs])
    )
    where, mend = "", "the model or the inputs"
    if not case.loop.plain:
        own = isinstance(case.loop, FunctionLoop)
        run = ReferenceSession(case.model, case.options.threads, optimised=case.optimised).step
        steps = recorded(case.loop, run, sample)
        # Inputs of the step that broke show it; those of the first one are sound.
        sample, outputs = steps[-1]
        if non_finite([outputs]):
            where = f", in {'call' if own else 'step'} {len(steps)} of the loop"
            mend = f"the model, the inputs or {'the function' if own else '--feed'}"
        elif own and case.sets.given is None:
            return (
                f"{trouble}, which the function of --loop makes of finite outputs; mend it first"
            )
    layer = born_not_finite(case.model, sample, case.options.threads)
    born = where + ("" if layer is None else f", born in {layer.op_type} {layer.name}")
    if layer is not None and (weight := _weight_not_finite(case.model, layer)):
        return f"{trouble}{born}, which reads {weight}; mend that first"
    # A division by 0 after an addition that the exporter has dropped.
    dropped = layer is not None and layer.op_type in _GUARDED
    if dropped and by_torch_export(case.model.proto):
        return (
            f"{trouble}{born}; torch.onnx.export(dynamo=True) leaves out '+ eps' up to 1e-8: "
            "export it with optimize=False, or give the module a larger eps"
        )
    return f"{trouble}{born}; mend {mend} first"


def _weight_not_finite(model: Model, layer: Layer) -> str:
    """Return what a weight that a layer or its body reads has of NaN and Inf; "" for no such."""
    view, outputs = View(model), {*layer.outputs}
    node = next(node for node in model.proto.graph.node if outputs.intersection(node.output))
    for name in (*node.input, *sorted(captured(node))):
        array = view.array(name)
        if array is not None and (told := not_finite(array)):
            while passing := view.made_by(name, "Cast", "Identity"):
                name = passing.input[0]
            return f"the weight {name!r}: {told}"
    return ""


def born_inside(prepared: Prepared, plan: Plan, *, late: bool) -> Plan:
    """Return the layers that make NaN or Inf of finite values where every layer may run low.

    What only carries a mask of attention is left out. A plan that keeps layers is not looked at:
    its diagnosis tells where they are born.
    """
    case = prepared.case
    nothing = Plan.of(())
    large = prepared.problem.large or case.options.low not in LOW_TYPES
    if plan != nothing or not prepared.backend.emulated or large or late:
        return nothing
    instrument = Instrument(
        case.model,
        case.pair,
        case.options.threads,
        case.scales,
        targets=case.options.targets,
        emulator=prepared.here,
    )
    try:
        broken = broken_under(instrument, case.fed[:LOOKED_AT], plan)
    except (ModelError, RuntimeError):
        return nothing
    # What stays inside a kernel is never stored.
    whole = whole_kernels(case.model, case.pair, case.options.targets)
    inside = whole.layers.keys() - whole.endings.keys()
    layers = {birth.layer for birth in births(instrument.view, broken)} - inside
    masks = prepared.problem.beyond_range() or nothing
    return Plan.of(instrument.index[name] for name in layers if name in instrument.index).without(
        masks.kept
    )


def unfelt(
    prepared: Prepared,
    plan: Plan | None,
    curve: Sequence[CurvePoint],
    born: Plan,
    late: Callable[[], bool],
) -> list[str]:
    """Tell of layers that leave the range in the answer without harm: other inputs may feel it.

    `born` are further layers in which NaN or Inf is born. An engine that needs no layer high had
    no inference of another kind, and gets none for this. Nothing is told once it is `late`.
    """
    with suppress(*STOPS), until(late):
        return _unfelt(prepared, plan, curve, born)
    return []


def _unfelt(
    prepared: Prepared, plan: Plan | None, curve: Sequence[CurvePoint], born: Plan
) -> list[str]:
    # Points of the curve are of the file, not of its fused form.
    in_file = prepared.case.variant != FUSED
    marked = in_file and "margin" in [point.point for point in curve]
    if plan is None or not (marked or prepared.backend.emulated):
        return []
    # What overflows without a trace in these outputs: an answer passes and keeps it low.
    beyond = (prepared.problem.overflowing() or plan).without(plan.kept).with_(born.kept)
    if not beyond:
        return []
    keep = "--fuse-norms " * (not in_file) + "--keep keeps what it names"
    keep = "--export-point margin keeps them, too" if marked else keep
    if marked and prepared.case.options.export_point == "margin":
        keep = "the exported plan keeps them"
    many, first = counted(len(beyond), "layer"), kept_names(prepared, beyond)[0]
    s = "s" if len(beyond) == 1 else ""
    return [
        f"{many} that run{s} in {prepared.case.options.low.upper()} leave{s} its range"
        f"{f' or make{s} NaN or Inf' if born.kept else ''}, {first} first; "
        f"these samples do not feel it, others may: {keep}"
    ]
