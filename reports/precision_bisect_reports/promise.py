"""What an answer promises about inputs that nobody has shown, in words."""

from precision_bisect.errors import counted
from precision_bisect.results.result import Result
from precision_bisect.results.unseen import Calibrating, Unseen


def unseen(result: Result) -> str:
    """Return the promise, or that there is none and what was seen of others; "" for nothing."""
    told = result.unseen
    if told is None:
        return ""
    if told.judged or told.unjudged:
        return _promise(told) + _estimate(told)
    # What was seen was seen on real inputs.
    if result.inputs is not None and result.inputs.synthetic:
        return ""
    if told.calibrating:
        return _calibrated(told, told.calibrating) + _estimate(told)
    alike = told.alike
    if alike is None:
        return ""
    samples = counted(told.took_part, "sample")
    return (
        f"{samples} promise{'s' * (told.took_part == 1)} nothing: {_seen(alike.mean)} of fresh "
        f"inputs failed, up to {_seen(alike.worst)}{_estimate(told)}{_waiting(result, told)}"
    )


def _promise(told: Unseen) -> str:
    said = f"{told.failed} of {told.judged} inputs that took no part are over"
    if before := told.joined + told.passed_later:
        said += f", and {before} {'was' if before == 1 else 'were'} with an earlier answer"
    said += (
        f"; at most {_percent(told.share_at_most)} of such inputs, "
        f"with {told.confidence:.0%} confidence"
    )
    if told.unjudged:
        said += f"; {told.unjudged} have no FP32 outputs to judge by"
    return said


def _waiting(result: Result, told: Unseen) -> str:
    """Say how many samples have not judged an answer, as after a budget that ended early."""
    left = result.inputs.samples - told.took_part if result.inputs else 0
    return f"; the other {left} have not judged this answer" if left > 0 else ""


def _calibrated(told: Unseen, found: Calibrating) -> str:
    """Say what all samples took part in, and how those did that chose no layer."""
    samples = f"all {told.took_part} samples" if told.took_part > 1 else "the one sample"
    rest = (
        f"; {found.failed} of {found.judged} that chose no layer are over" if found.judged else ""
    )
    return f"{samples} calibrated, which promises nothing (--holdout N does){rest}"


def _estimate(told: Unseen) -> str:
    """Say what the spread of errors suggests, which proves nothing."""
    found = told.estimate
    if found is None or told.share_at_most <= found.risk:
        return ""
    if found.spread is None:
        why = f", as {' and '.join(found.selecting)} selects" if found.selecting else ""
        return f"; no estimate for {_percent(found.risk)}: errors are of several kinds{why}"
    if found.share_under is None:
        return f"; their spread does not suggest {_percent(found.risk)} or less"
    proof = f"{found.provable_by} samples that pass would prove {_percent(found.risk)}"
    return f"; their spread suggests under {_percent(found.share_under)}; {proof}"


def _seen(share: float) -> str:
    return f"{100 * share:.0f}%" if share >= 0.02 else _percent(share)


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.995 else "100%"
