"""Workers that are lost in every way, and what becomes of the search: nothing, or as little."""

import os
import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from effort import nightly
from faults import subject
from faults.harness import Record, Run
from precision_bisect.plan import Plan
from precision_bisect.runs.monitoring.events import Event, TrialFinished

RETRIED = {
    "signals": ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS"),
    "ends": ("exit 0", "exit 7", "chatter and die", "closed pipe"),
    "answers": ("no pickle", "half an answer, dead", "another type"),
}
"""Faults that cost nothing: the trial is evaluated once more."""
ONE_OF_EACH = ("SIGKILL", "exit 0", "closed pipe", "half an answer, dead")
WITHOUT_VERDICT: Mapping[str, Mapping[str, str]] = {
    "hangs": {
        "hang": "timed_out",
        "hang in native code": "timed_out",
        "hang with company": "timed_out",
    },
    "silences": {
        "SIGSTOP": "timed_out",
        "half an answer, hang": "timed_out",
        "garbage": "timed_out",
    },
    "failures": {"MemoryError": "out_of_memory", "grow": "out_of_memory", "raise": "raised"},
}
"""Faults that cost one trial its verdict, and the status it has instead."""
ONE_STATUS_EACH = {"hang in native code": "timed_out", "grow": "out_of_memory", "raise": "raised"}
CALLS = (5, 14, 18, 23)
"""The evaluations that faults meet: while layers are ranked and predicted, and in the search."""
ANSWER = Plan.of((2, 3, 8, 9)).key


def orders(faults: Iterable[str]) -> list[dict[str, Any]]:
    """Return the script's orders for some faults, one for each of `CALLS`."""
    return [{"do": what, "call": call} for what, call in zip(faults, CALLS, strict=False)]


def retries(run: Run) -> list[str]:
    """Return the trials that were begun again, one for each time."""
    begun = Counter(trial for what, trial, _ in subject.noted(run.folder) if what == "begun")
    return sorted((begun - Counter(list(begun))).elements())


@pytest.mark.parametrize(
    "faults",
    [ONE_OF_EACH, *nightly(*((each,) for each in RETRIED.values()))],
    ids=["one of each", *RETRIED],
)
def test_a_lost_process_costs_nothing(
    run: Run, faults: Sequence[str], whole: Mapping[str, Any], record_property: Record
) -> None:
    """The trial is evaluated once more in another process; every verdict is as undisturbed."""
    subject.order(run.folder, *orders(faults))
    result = run.search()
    run.settle(result, len(faults), record_property, subject.KEPT)
    assert len(faults) == len(retries(run))
    assert whole == subject.rows(run.folder)


@pytest.mark.nightly
def test_a_process_lost_between_trials_costs_nothing(
    run: Run, whole: Mapping[str, Any], record_property: Record
) -> None:
    """A child that is killed while it waits is replaced when the next trial comes."""

    def observe(event: Event) -> None:
        if isinstance(event, TrialFinished) and len(subject.noted(run.folder)) in (20, 40):
            *_, (_, _, pid) = subject.noted(run.folder)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    result = run.search(observer=observe)
    run.settle(result, 2, record_property, subject.KEPT)
    assert whole == subject.rows(run.folder)
    assert 3 == len({pid for *_, pid in subject.noted(run.folder)})


@pytest.mark.parametrize(
    "faults",
    [
        ONE_STATUS_EACH,
        *nightly(*WITHOUT_VERDICT.values()),
    ],
    ids=["one of each", *WITHOUT_VERDICT],
)
def test_trials_without_verdict_are_gone_round(
    run: Run, faults: Mapping[str, str], record_property: Record
) -> None:
    """Each has its own status, the process is replaced, and the same layers are kept."""
    subject.order(run.folder, *orders(faults))
    result = run.search()
    run.settle(result, len(faults), record_property, subject.KEPT)
    statuses = Counter(status for status, *_ in subject.rows(run.folder).values())
    del statuses["finished"]
    assert Counter(faults.values()) == statuses
    assert [] == retries(run)


@pytest.mark.parametrize(
    ("fault", "status"),
    [("SIGSEGV", "crashed"), *nightly(("raise", "raised"))],
)
def test_a_plan_that_is_never_judged_is_gone_round(
    run: Run, fault: str, status: str, record_property: Record
) -> None:
    """Where the smallest answer is fatal every time, a larger one is found, and it passes."""
    subject.order(run.folder, {"do": fault, "plan": ANSWER})
    result = run.search()
    assert set(subject.KEPT) < set(result.kept)
    assert subject.error_alone(run.folder, result.kept) <= subject.TOLERANCE
    run.settle(result, 1, record_property, result.kept)
    assert {status: 1} == result.unresolved
    died = {"SIGSEGV": "its process ended by SIGSEGV (Segmentation fault)"}.get(fault, "")
    assert result.unresolved_why[status].startswith(died)
    assert not result.certificate.minimal
