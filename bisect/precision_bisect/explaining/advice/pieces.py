"""Norms and activations in pieces: export them whole, or put them together."""

from collections.abc import Iterator

from precision_bisect.errors import PrecisionBisectError, counted
from precision_bisect.explaining.advice.case import DiagnosedModel, ModelChange
from precision_bisect.explaining.diagnosis.findings import Advice
from precision_bisect.graphs.fusing.found import SINCE, Decomposed, Kind
from precision_bisect.graphs.fusing.fuse import fuse
from precision_bisect.graphs.graph import opset
from precision_bisect.graphs.load import Model
from precision_bisect.runs.results.advised import Tried


def in_pieces(case: DiagnosedModel) -> Iterator[Advice]:
    """Yield one piece of advice for each kind of operator of which kept layers are pieces."""
    hit: dict[Kind, list[Decomposed]] = {}
    for each in case.decomposed:
        if case.kept.intersection(each.members):
            hit.setdefault(each.kind, []).append(each)
    fused = _fused(case) if hit else None
    tried = _put_together(case, fused) if fused else None
    flag = ", or search with --fuse-norms, which puts the pieces together" if fused else ""
    measured = tried.clause("put together") if tried else ""
    for kind, every in hit.items():
        layers = [name for each in every for name in each.members if name in case.kept]
        yield Advice(
            id=f"whole-{kind.lower()}",
            title=f"Export {kind} as one operator",
            text=f"{_how(case, kind)}{flag}.",
            layers=layers,
            evidence=f"of {counted(len(case.kept), 'layer')} here {len(layers)} "
            f"{'is a piece' if len(layers) == 1 else 'are pieces'} of {kind}, which "
            f"the export took apart{f' in {len(every)} places' if len(every) > 1 else ''}"
            f"{measured}",
            tried=tried,
        )


def _how(case: DiagnosedModel, kind: Kind) -> str:
    if opset(case.model.proto) < SINCE[kind]:
        return f"Export the model at opset {SINCE[kind]} or newer, where {kind} is one operator"
    return (
        f"Have the model call the framework's own {kind}, so that it is exported as one operator"
    )


def _fused(case: DiagnosedModel) -> Model | None:
    """Return the model as --fuse-norms makes it; None where it refuses to."""
    try:
        return fuse(case.model, case.samples, case.reference, case.work).model
    except PrecisionBisectError:
        return None


def _put_together(case: DiagnosedModel, model: Model) -> Tried | None:
    """Return what putting everything together comes to, None where that cannot be tried."""
    left = [name for name in case.kept if name in model.table.names]
    return case.tried(left, ModelChange(model=model))
