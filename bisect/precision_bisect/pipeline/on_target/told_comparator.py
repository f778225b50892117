"""The comparator of a finished run, made again from what its result tells: untrusted input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from precision_bisect.errors import UsageError
from precision_bisect.exports.finished import Finished
from precision_bisect.exports.polygraphy_command import METRICS
from precision_bisect.judging.comparators.choose_comparator import ReadyMade
from precision_bisect.judging.comparators.polygraphy_plugin import PolygraphyComparator
from precision_bisect.judging.comparators.script import ScriptComparator
from precision_bisect.judging.comparators.tolerance import Tolerance
from precision_bisect.protocols import Comparator
from precision_bisect.runs.results.saved import damaged, quoted
from precision_bisect.runs.typed_json import typed
from precision_bisect.settings.check_words import READY_MADE, read_check


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """The settings of a comparator, as a fingerprint has them."""

    metric: str | None = None
    atol: Mapping[str, float] = field(default_factory=dict)
    rtol: Mapping[str, float] = field(default_factory=dict)
    quantile: float = 0.99
    classes: Mapping[str, float] = field(default_factory=dict)
    check: str | None = None
    outputs: Sequence[str] = ()
    script: str | None = None
    tolerance: float | None = None


def comparator_of(finished: Finished, check: str | None) -> Comparator:
    """Return what judged the run; `check` names a script that did, which a result has not.

    Raises UsageError where the script is not given, or is another one, and for a metric of a
    plug-in; RunFolderError for a result that tells of no comparator.
    """
    try:
        told = typed(_Told, finished.fingerprint.get("comparator"))
        if told.script is not None:
            return _script(told, check)
        if check is not None:
            raise UsageError("the run judged by no script", "leave --check out")
        if told.check and told.check in READY_MADE and told.tolerance is not None:
            return ReadyMade(name=told.check, outputs=told.outputs, tolerance=told.tolerance)
        if told.metric in METRICS:
            return PolygraphyComparator(
                metric=told.metric,
                atol=Tolerance(per_output=told.atol),
                rtol=Tolerance(per_output=told.rtol),
                outputs=tuple(dict.fromkeys((*told.atol, *told.classes))),
                quantile=told.quantile,
                shares=told.classes,
            )
    except ValueError as error:
        raise damaged(finished.path, f"fingerprint.comparator: {error}") from error
    raise UsageError(
        f"the run judged by {quoted(told.metric or told.check)}, a plug-in's metric, whose limits "
        "are not told",
        "search with a metric that comes along, or --check FILE.py:FUNCTION",
    )


def _script(told: _Told, check: str | None) -> ScriptComparator:
    words = read_check(check) if check is not None else None
    if words is None or words.script is None:
        raise UsageError(
            f"the run judged by the script {quoted(told.check)}", "give it by --check"
        )
    made = ScriptComparator(words.script, words.name, told.tolerance)
    if made.settings()["script"] != told.script:
        raise UsageError(
            f"{words.script} is not the script that judged the run, or has changed since",
            "give that one by --check",
        )
    return made
