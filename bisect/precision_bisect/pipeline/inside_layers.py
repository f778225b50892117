"""What no sample feels inside the layers of an answer, and where engines differ."""

from collections.abc import Sequence

from precision_bisect.errors import counted, first_of
from precision_bisect.explaining.diagnosis.inner_sums import inner_sums
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.pipeline.judged_answer import kept_names
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.plan import Plan
from precision_bisect.runs.results.other_targets import InnerSum
from precision_bisect.runs.results.result import CurvePoint


def sums_inside(prepared: Prepared, plan: Plan, *, late: bool) -> list[InnerSum]:
    """Return the low layers of an answer whose sums an engine loses that adds in FP16.

    Engines are asked themselves, and no other type is added in.
    """
    if not prepared.backend.emulated or prepared.options.low != "fp16" or late:
        return []
    seen = prepared.seen()
    if seen is None:
        return []
    kept = set(plan.kept)
    low = (name for i, name in enumerate(prepared.model.table.names) if i not in kept)
    return inner_sums(
        prepared.model,
        seen,
        prepared.samples,
        frozenset(map(str, low)),
        LOW_TYPES["fp16"].largest,
        prepared.options.threads,
    )


def sums_remarks(sums: Sequence[InnerSum]) -> list[str]:
    """Say in which layers sums are lost where they are added in FP16; one sentence or none."""
    if not sums:
        return []
    first = max(sums, key=lambda each: each.partial)
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
    seen = prepared.seen() if prepared.backend.emulated else None
    return () if seen is None else seen.hidden


def hidden_remarks(layers: Sequence[str]) -> list[str]:
    """Say that engines differ in rows that a mask hides whole; one sentence or none."""
    if not layers:
        return []
    return [
        f"a mask hides whole rows from {first_of(layers)}: engines differ there, whatever the "
        "precision (ONNX Runtime's Attention gives 0, the same written out the mean of all values)"
    ]


def unfelt(prepared: Prepared, plan: Plan | None, curve: Sequence[CurvePoint]) -> list[str]:
    """Tell of layers that leave the range in the answer without harm: other inputs may feel it.

    An engine that needs no layer high had no inference of another kind, and gets none for this.
    """
    marked = "margin" in [each.point for each in curve]
    if plan is None or not (marked or prepared.backend.emulated):
        return []
    left = (prepared.problem.overflowing() or plan).without(plan.kept)
    if not left:
        return []
    keep = "--export-point margin keeps them, too" if marked else "--keep keeps what it names"
    if marked and prepared.options.export_point == "margin":
        keep = "the exported plan keeps them"
    many, first = counted(len(left), "layer"), kept_names(prepared, left)[0]
    return [
        f"{many} that run in {prepared.options.low.upper()} leave its range, {first} first; "
        f"these samples do not feel it, others may: {keep}"
    ]
