"""The comparator that the options ask for: an installed one, a check, or the user's own script.

Checks that come along are named by `--check top1`, `--check boxes:dets,labels`.

To add a metric, write a `MakeComparator` and name it in the entry points of the group
`precision_bisect.comparators`, under what `--metric` calls it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from precision_bisect.errors import UsageError
from precision_bisect.graphs.fp32_outputs import class_outputs, non_finite, sized_outputs
from precision_bisect.graphs.load import Model
from precision_bisect.judging.comparators.matched_boxes import DoesNotFit
from precision_bisect.judging.comparators.polygraphy_plugin import (
    PolygraphyComparator,
    by_size,
    tolerance_from,
)
from precision_bisect.judging.comparators.script import (
    FunctionComparator,
    Guarded,
    OfPython,
    ScriptComparator,
)
from precision_bisect.judging.comparators.task_checks import judge_task, read_forms
from precision_bisect.options import Options
from precision_bisect.plugins import COMPARATORS, make, name_of
from precision_bisect.protocols import Comparator, Judgement, Sample
from precision_bisect.settings.check_words import READY_MADE, judged_outputs, read_check
from precision_bisect.trial import Verdict

MakeComparator: TypeAlias = Callable[[Options, Sequence[str], Collection[str]], Comparator]
"""Makes a comparator from the options, the model's outputs, and those that are classes.

Raises UsageError for limits that are missing, not positive, or of unknown outputs.
"""


def choose_comparator(
    options: Options, outputs: Sequence[str], classes: Collection[str] = ()
) -> Comparator:
    """Return the comparator for a model with these outputs; see `MakeComparator`.

    Raises what that does, and PluginError for a metric that is not installed.
    """
    if options.check is not None:
        return _check(options, options.check, outputs)
    comparator: Comparator = make(COMPARATORS, options.metric, options, outputs, classes)
    if isinstance(comparator, PolygraphyComparator):
        return comparator
    kind = OfPython if callable(options.metric) else Guarded
    return kind(comparator=comparator, name=name_of(options.metric))


def exact_outputs(options: Options, model: Model) -> dict[str, str]:
    """Return the outputs of which every element counts as right or wrong, each with its type."""
    classes = class_outputs(model)
    for name in by_size(options, sized_outputs(model, classes)):
        del classes[name]
    return classes


def judge_words(options: Options) -> str:
    """Return the flag that says what judges, as messages have it."""
    if options.check is None:
        return f"--metric {name_of(options.metric)}"
    check = options.check
    return f"--check {read_check(check) if isinstance(check, str) else name_of(check)}"


def _check(
    options: Options, check: str | Callable[..., Any], outputs: Sequence[str]
) -> Comparator:
    if options.atol is not None or options.rtol is not None:
        raise UsageError("--check has one figure of its own", "give its limit by --tol")
    if isinstance(options.tol, Mapping):
        raise UsageError("--check judges all outputs at once", "give one number to --tol")
    tolerance = tolerance_from(options.tol).default
    # Given to the API as a function: it judges in this process alone.
    if not isinstance(check, str):
        return FunctionComparator(check, name_of(check), tolerance)
    words = read_check(check)
    if words.script is None:
        judged = judged_outputs(words, outputs)
        if tolerance is None:
            raise UsageError(
                f"--check {words.name} has no default tolerance",
                f"give --tol {READY_MADE[words.name]}",
            )
        return ReadyMade(name=words.name, outputs=judged, tolerance=tolerance)
    return ScriptComparator(words.script, words.name, tolerance)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyMade:
    """Judges these outputs of all samples by a check of READY_MADE.

    It takes them for what `forms` says, else what the reference beside them looks like.
    """

    name: str
    outputs: Sequence[str]
    tolerance: float
    forms: Mapping[str, Any] | None = None

    def settings(self) -> Mapping[str, Any]:
        """Return the check, its outputs, their forms if read, and the limit: the fingerprint."""
        forms = {} if self.forms is None else {"forms": dict(self.forms)}
        settings = {"check": self.name, "outputs": list(self.outputs), **forms}
        return {**settings, "tolerance": self.tolerance}

    def fitted(
        self, reference: Sequence[Sample], images: Collection[tuple[int, int]] = ()
    ) -> "ReadyMade":
        """Return the check for outputs that look like a reference.

        `images` are the height and width of each sample's image, where each has one. Raises
        UsageError for a reference that the check is not made for.
        """
        try:
            forms = read_forms(self.name, self._judged(reference), images)
        except DoesNotFit as why:
            hint = f"name the outputs that it judges, as --check {self.name}:OUTPUT"
            raise UsageError(f"--check {self.name}: {why}", f"{hint}, or write a check") from why
        return replace(self, forms=forms)

    def judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        """Judge all samples. Raises UsageError as `fitted` does."""
        if not outputs or len(outputs) != len(reference):
            raise ValueError(f"{len(outputs)} outputs for {len(reference)} references")
        if trouble := non_finite(outputs):
            return Judgement(verdict=Verdict.FAIL, error=float("inf"), message=trouble)
        forms = self.fitted(reference).forms if self.forms is None else self.forms
        both = map(self._judged, (outputs, reference))
        with np.errstate(all="ignore"):
            error, remark = judge_task(self.name, dict(forms or {}), *both)
        verdict = Verdict.PASS if error <= self.tolerance else Verdict.FAIL
        return Judgement(verdict=verdict, error=error, message=remark)

    def _judged(self, samples: Sequence[Sample]) -> list[dict[str, NDArray[Any]]]:
        return [{name: sample[name] for name in self.outputs} for sample in samples]
