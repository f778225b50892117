"""Whether a model gives the same outputs for the same inputs, as no verdict means anything else.

The reference runs twice in one session. What differs is judged like a plan, within a part of the
tolerance: random numbers that hardly move an output are no obstacle.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx

from precision_bisect.errors import ModelError, UsageError, first_of
from precision_bisect.graphs.fp32_outputs import (
    TRAINED,
    ReferenceSession,
    changing_nodes,
    distances,
    non_finite,
)
from precision_bisect.graphs.load import Model
from precision_bisect.judging.inputs.loops import PLAIN, FunctionLoop, Loop
from precision_bisect.judging.inputs.reference import Reference
from precision_bisect.protocols import Comparator, Judgement, Sample
from precision_bisect.trial import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Judges as `comparator` does, within a share of what lies between `base` and its tolerance.

    `base` is the error of the reference itself: 0 for differences, but not for a check that
    measures quality. A check without a figure is taken as it is.
    """

    comparator: Comparator
    share: float
    base: float = 0.0

    @property
    def tolerance(self) -> float | None:
        limit = self.comparator.tolerance
        return None if limit is None else self.base + self.share * (limit - self.base)

    def settings(self) -> Mapping[str, Any]:
        """Return the comparator's settings and the share, for the fingerprint."""
        return {**self.comparator.settings(), "share": self.share, "base": self.base}

    def judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        """Judge all samples; outputs within the tolerance fail beyond the share of it."""
        judged = self.comparator.judge(outputs, reference)
        if self.tolerance is None or judged.error is None:
            return judged
        within = judged.verdict is Verdict.PASS and judged.error <= self.tolerance
        verdict = Verdict.PASS if within else Verdict.FAIL
        return replace(judged, verdict=verdict)


def shared(comparator: Comparator, share: float, reference: Sequence[Sample]) -> Comparator:
    """Return the comparator for a share of its tolerance; itself where that has no meaning."""
    if share >= 1.0 or comparator.tolerance is None:
        return comparator
    base = comparator.judge(reference, reference).error or 0.0
    return Shared(comparator=comparator, share=share, base=base)


SHARE = 0.1
"""Share of the tolerance that two runs may differ by. Half and double change nothing in
benchmarks/constants.py."""
RUNS = 8
"""Runs of samples beside the first ones, at least: a Dropout of few elements may drop none."""
_NAMED = 3


def steadiness(
    model: Model,
    samples: Sequence[Sample],
    reference: Reference,
    comparator: Comparator,
    threads: int,
    loop: Loop = PLAIN,
) -> str:
    """Return what to say of nodes that change from run to run and are no obstacle, "" for none.

    `samples` are those that judge. Only a model that was seen to differ, or that has such nodes,
    is run again. Raises ModelError where two runs differ by more than a part of the tolerance,
    with the nodes and what to do; UsageError where a function of --loop does that.
    """
    changing = changing_nodes(model, {spec.name for spec in model.outputs})
    if not reference.runs or (reference.steady and not changing):
        return ""
    # Optimised as plans are, even if the reference is not: that alone may make a norm learn on.
    run = ReferenceSession(model, threads, how=loop)
    first = [run(sample) for sample in samples]
    if non_finite(first):
        return ""
    within = shared(comparator, SHARE, first)
    worst, moved = Judgement(verdict=Verdict.PASS, error=0.0), set[str]()
    for _ in range(max(1, RUNS // len(samples))):
        again = [run(sample) for sample in samples]
        for one, other in zip(first, again, strict=True):
            moved |= {name for name, share in distances(other, one).items() if share}
        judgement = within.judge(again, first)
        if judgement.verdict is Verdict.FAIL:
            nodes = changing_nodes(model, moved)
            by = _by(judgement.error, comparator.tolerance)
            if isinstance(loop, FunctionLoop) and not nodes:
                what = f"{loop.called} gives other outputs each time: two runs differ{by}"
                raise UsageError(what, "fix its seed")
            raise _changed(model, nodes, by)
        worst = max(worst, judgement, key=lambda judgement: judgement.error or 0.0)
    if not changing:
        return ""
    if not moved:
        return f"{_named(changing)} may change from run to run; the reference does not"
    by = _by(worst.error, comparator.tolerance)
    return f"{_named(changing)} changed the outputs of another run{by}: no obstacle"


def unsettled(reference: Reference, comparator: Comparator) -> str:
    """Return what to say where FP32 itself differs by more than the limit, "" where it does not.

    Values that cross a step of INT8 turn the last digit of FP32 into a whole step.
    """
    plain = reference.plain
    if not plain or non_finite(plain):
        return ""
    judgement = comparator.judge(plain, reference.outputs[: len(plain)])
    if judgement.verdict is Verdict.PASS:
        return ""
    return (
        f"FP32 itself differs{_by(judgement.error, comparator.tolerance)}, with and without ONNX "
        "Runtime's optimisation: values cross steps of INT8; no answer can hold on every engine, "
        "so loosen the limit"
    )


def _changed(model: Model, nodes: Sequence[onnx.NodeProto], by: str) -> ModelError:
    """Return the error for a model of which two runs differ."""
    message = f"{model.path} is not deterministic: two runs of the same samples differ{by}"
    if not nodes:
        return ModelError(
            f"{message}; no standard node of it draws random numbers",
            "export it so that equal inputs give equal outputs",
        )
    trained = [node.op_type in TRAINED for node in nodes]
    ways = ["export it in eval mode"] * any(trained)
    ways += ["make what is drawn an input, since no seed repeats it"] * (not all(trained))
    why = f"{_named(nodes)} change{'s' * (len(nodes) == 1)} from run to run"
    return ModelError(f"{message}; {why}", ", and ".join(ways))


def _by(error: float | None, tolerance: float | None) -> str:
    if error is None or tolerance is None:
        return ""
    return f" by {error:.2g}, tolerance {tolerance:g}"


def _named(nodes: Sequence[onnx.NodeProto]) -> str:
    """Return the nodes by name and operator."""
    names = [
        f"{node.name or node.output[0]!r} "
        f"({node.op_type}{' in training mode' * (node.op_type in TRAINED)})"
        for node in nodes
    ]
    return first_of(names, _NAMED)
