"""From an answer to why it is the answer, and what would change it."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from precision_bisect.advice.advise import advised
from precision_bisect.advice.case import Case
from precision_bisect.certificate import Certificate
from precision_bisect.diagnosis.diagnose import Question, diagnose
from precision_bisect.diagnosis.findings import Finding, Findings
from precision_bisect.diagnosis.watching import Watched
from precision_bisect.errors import PrecisionBisectError
from precision_bisect.fusing.view import View
from precision_bisect.lowtypes import LOW_TYPES, QUANTIZED
from precision_bisect.model.load import Model
from precision_bisect.precisions import Pair
from precision_bisect.prepare import Prepared
from precision_bisect.quantization.diagnosis import diagnose_quantized
from precision_bisect.trial import Phase, Trial

NEAR_MISSES = 5
"""So many layers that are not kept, the most sensitive ones, are explained, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A plan to explain, by names; `proof` and `trials` are the search's."""

    kept: Sequence[str]
    proof: Certificate
    trials: Sequence[Trial]


def explained(prepared: Prepared, answer: Answer, *, advise: bool = True) -> Findings:
    """Explain the kept layers and the near misses, and advise if asked to.

    Without an explanation the answer stands all the same: nothing is found where something fails.
    """
    pair = Pair(low=prepared.options.low, high=prepared.options.high)
    try:
        if pair.low not in LOW_TYPES:
            return _quantized(prepared, answer)
        question = _question(prepared, pair, answer)
        findings, watched = diagnose(question)
    except (KeyboardInterrupt, RuntimeError, MemoryError, PrecisionBisectError):
        return Findings(low=pair.low)
    if not advise:
        return findings
    try:
        return with_advice(prepared, findings, watched, notes_of(answer.trials))
    except (RuntimeError, MemoryError, PrecisionBisectError, OSError):
        return findings


def with_advice(
    prepared: Prepared, findings: Findings, watched: Watched, notes: Sequence[str] = ()
) -> Findings:
    """Return the findings with advice. Raises as loading and running models do."""
    judging = prepared.judging
    with tempfile.TemporaryDirectory(dir=prepared.work) as work:
        return advised(
            Case(
                model=prepared.model,
                pair=Pair(low=prepared.options.low, high=prepared.options.high),
                findings=findings,
                watched=watched,
                samples=prepared.samples[:judging],
                reference=prepared.reference[:judging],
                comparator=prepared.comparator,
                work=Path(work),
                notes=notes,
                threads=prepared.options.threads,
            )
        )


def notes_of(trials: Sequence[Trial]) -> list[str]:
    """Return what builders remarked in any trial, each remark once."""
    return [*dict.fromkeys(note for each in trials for note in each.outcome.evidence.notes)]


def _question(prepared: Prepared, pair: Pair, answer: Answer) -> Question:
    return Question(
        model=prepared.model,
        pair=pair,
        kept=answer.kept,
        near=near_misses(prepared, answer),
        tensors=squares(prepared.model),
        samples=prepared.samples,
        drop_errors=answer.proof.errors,
        threads=prepared.options.threads,
        scales=prepared.scales,
    )


def squares(model: Model) -> list[str]:
    """Return the FP32 tensors that hold squares, which advice on scaling looks at."""
    view = View(model)
    return [
        node.output[0]
        for node in view.nodes
        if node.op_type in ("Mul", "Pow")
        and view.square(node.output[0])
        and model.elem_types.get(node.output[0]) == onnx.TensorProto.FLOAT
        and all(view.array(name) is None for name in node.input[:1])
    ]


def near_misses(prepared: Prepared, answer: Answer) -> list[str]:
    """Return the layers that rank next: those whose error alone low is largest, if not kept."""
    names = prepared.model.table.names
    errors: dict[str, float] = {}
    for trial in answer.trials:
        lowered = len(names) - len(trial.proposal.plan)
        if trial.proposal.phase is Phase.RANKING and lowered == 1:
            kept = trial.proposal.plan.kept
            layer = next(name for i, name in enumerate(names) if i not in kept)
            if layer not in answer.kept and trial.outcome.error is not None:
                errors[layer] = trial.outcome.error
    order = {str(name): i for i, name in enumerate(names)}
    return sorted(errors, key=lambda name: (-errors[name], order[name]))[:NEAR_MISSES]


def _quantized(prepared: Prepared, answer: Answer) -> Findings:
    kind = QUANTIZED[prepared.options.low]
    found = diagnose_quantized(
        prepared.model, answer.kept, prepared.samples, prepared.scales, kind
    )
    layers = []
    for each in found:
        error = answer.proof.errors.get(each.layer)
        dropped = "" if error is None else f"; dropped: error {error:.3g}"
        layers.append(
            Finding(
                layer=each.layer,
                kept=True,
                cause=each.cause,
                evidence=each.evidence + dropped,
                figures={"drop_error": error},
            )
        )
    return replace(Findings(low=kind.name), layers=layers)
