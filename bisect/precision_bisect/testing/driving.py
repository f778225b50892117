"""Drives a strategy by an oracle, and watches what it does."""

import io
from collections.abc import Generator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any, TypeAlias

from precision_bisect.plan import Plan
from precision_bisect.protocols import Strategy
from precision_bisect.testing.cases import Case
from precision_bisect.trial import Kind, Outcome, Proposal

PREDICTIONS = 100_000
"""No search of so few layers may ask the emulator more often."""
SHOWN = 8
"""So many kept layers of a plan are named in a message."""

Batches: TypeAlias = Sequence[Sequence[Proposal]]


class ContractError(AssertionError):
    """A promise is broken; the message is one line that says which, how, and on what."""


def require(kept: bool, what: str) -> None:
    """Raise ContractError unless a promise is kept."""
    if not kept:
        raise ContractError(what)


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """What a search did: the plan it ended with (None where it was cut off), and its proposals."""

    plan: Plan | None
    batches: Batches


def drive(strategy: Strategy, case: Case, *, cut: int | None = None) -> Driven:
    """Return what a search of the case does; with `cut`, it is closed after so many batches.

    Raises ContractError where it does anything that no search may do.
    """
    stream = io.StringIO()
    with redirect_stdout(stream), redirect_stderr(stream):
        driven = _drive(strategy, case, cut)
    if stream.getvalue():
        raise ContractError(f"prints {stream.getvalue()[:40]!r} ({case.name})")
    return driven


def plan_words(plan: Plan) -> str:
    """Return a plan in a few words."""
    if not plan.kept:
        return "the plan that keeps nothing"
    some = ", ".join(map(str, plan.indices[:SHOWN]))
    return f"the plan that keeps {some}{', …' if len(plan) > SHOWN else ''}"


def _drive(strategy: Strategy, case: Case, cut: int | None) -> Driven:
    batches: list[Sequence[Proposal]] = []
    counts = {True: 0, False: 0}
    try:
        search: Generator[Any, Any, Any] = strategy.search(case.problem)
        batch = next(search)
        while True:
            batches.append(_checked(batch, case))
            for proposal in batch:
                counts[proposal.kind is Kind.PREDICT] += 1
            _check_number(counts[False], counts[True], case)
            if len(batches) == cut:
                # A run may end at any trial: a strategy has to bear that.
                search.close()
                return Driven(plan=None, batches=batches)
            batch = search.send(tuple(_answer(proposal, case) for proposal in batch))
    except StopIteration as end:
        if not isinstance(end.value, Plan):
            raise ContractError(f"ends with {end.value!r}, not a plan ({case.name})") from None
        return Driven(plan=end.value, batches=batches)
    except ContractError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ContractError(f"raises {what} ({case.name})") from error


def _answer(proposal: Proposal, case: Case) -> Outcome:
    judge = case.emulator if proposal.kind is Kind.PREDICT else case.oracle
    return judge(proposal.plan.kept)


def _checked(batch: object, case: Case) -> Sequence[Proposal]:
    """Return a batch that is one. Raises ContractError."""
    if not isinstance(batch, tuple) or not all(isinstance(item, Proposal) for item in batch):
        raise ContractError(f"yields {batch!r:.60}, not a tuple of proposals ({case.name})")
    if not batch:
        raise ContractError(f"yields an empty batch ({case.name})")
    layers = frozenset(range(case.problem.size))
    for proposal in batch:
        if beyond := sorted(proposal.plan.kept - layers):
            raise ContractError(f"proposes to keep layer {beyond[0]} ({case.name})")
    return batch


def _check_number(trials: int, predictions: int, case: Case) -> None:
    """Raise ContractError where a search goes on for too long."""
    most = 100 + 10 * case.problem.size**2
    if trials > most:
        raise ContractError(f"does not end within {most} trials ({case.name})")
    if predictions > PREDICTIONS:
        raise ContractError(f"does not end within {PREDICTIONS} predictions ({case.name})")
