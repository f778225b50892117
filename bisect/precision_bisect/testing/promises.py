"""The promises of a strategy, one function each; all raise ContractError where it is broken."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeAlias

from precision_bisect.plan import Plan
from precision_bisect.protocols import Strategy
from precision_bisect.testing.cases import (
    Case,
    Variation,
    as_it_is,
    built,
    four_workers,
    pass_fail,
    unforeseen_builds,
    unresolved,
    unsteady,
)
from precision_bisect.testing.driving import ContractError, drive, plan_words
from precision_bisect.trial import Identity, Kind, Proposal

Factory: TypeAlias = Callable[[], Strategy]

CUTS = 6
"""A search is cut off after each of so many first batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One promise: what it says, what checks it on one case, and the cases it is checked on."""

    text: str
    check: Callable[[Factory, Case], None]
    variations: tuple[Variation, ...]


def describes_itself(factory: Factory) -> None:
    """Check that it can be made, and the four attributes that others read."""
    try:
        strategy = factory()
    except Exception as error:
        raise ContractError(f"cannot be made: {type(error).__name__}: {error}") from error
    for attribute in ("name", "assumption"):
        text = getattr(strategy, attribute, None)
        if not isinstance(text, str) or not text.strip() or len(text.splitlines()) > 1:
            raise ContractError(f"its {attribute} is {text!r}, not one line of text")
    if not isinstance(minimal := getattr(strategy, "minimal", None), bool):
        raise ContractError(f"its minimal is {minimal!r}, not True or False")
    largest = getattr(strategy, "largest", 0)
    if largest is not None and (not isinstance(largest, int) or largest < 1):
        raise ContractError(f"its largest is {largest!r}, neither None nor a number of layers")


def ends_with_a_pass(factory: Factory, case: Case) -> None:
    """Check that the search was told that its plan passed; all-high is known to."""
    driven = drive(factory(), case)
    plan = driven.plan or Plan.of(())
    if plan == Plan.all_high(case.problem.size):
        return
    asked = {proposal.identity for batch in driven.batches for proposal in batch}
    if Proposal(plan=plan).identity not in asked:
        raise ContractError(f"ends with {plan_words(plan)}, which it never tried ({case.name})")
    outcome = case.oracle(plan.kept)
    if not outcome.passed:
        what = "which failed" if outcome.failed else "which had no verdict"
        raise ContractError(f"ends with {plan_words(plan)}, {what} ({case.name})")


def repeats_itself(factory: Factory, case: Case) -> None:
    """Check that the same outcomes give the same proposals, also from one object used twice."""
    strategy = factory()
    first = drive(strategy, case)
    for who, again in (
        ("another object", drive(factory(), case)),
        ("itself", drive(strategy, case)),
    ):
        for number, (one, other) in enumerate(zip_longest(first.batches, again.batches), 1):
            if one != other:
                raise ContractError(
                    f"is told the same as {who} and differs in batch {number} ({case.name})"
                )
        if first.plan != again.plan:
            raise ContractError(f"is told the same as {who} and ends otherwise ({case.name})")


def asks_nothing_twice(factory: Factory, case: Case) -> None:
    """Check that no trial is proposed again, in the same batch or after its outcome."""
    told: set[Identity] = set()
    for number, batch in enumerate(drive(factory(), case).batches, 1):
        trials = [proposal for proposal in batch if proposal.kind is not Kind.PREDICT]
        for proposal in trials:
            if proposal.identity in told:
                what = f"asks {plan_words(proposal.plan)} again in batch {number}"
                raise ContractError(f"{what}, when it knows the outcome ({case.name})")
        fresh = {proposal.identity for proposal in trials}
        if len(fresh) < len(trials):
            raise ContractError(f"asks a plan twice in batch {number} ({case.name})")
        told |= fresh


def can_be_cut_off(factory: Factory, case: Case) -> None:
    """Check that the generator closes without a word wherever a budget ends it."""
    for cut in range(1, CUTS + 1):
        if drive(factory(), case, cut=cut).plan is not None:
            return


def ends_minimal(factory: Factory, case: Case) -> None:
    """Check the claim that no single kept layer can be dropped."""
    strategy = factory()
    if not strategy.minimal:
        return
    plan = drive(strategy, case).plan or Plan.of(())
    for layer in plan.indices:
        if case.oracle(plan.without((layer,)).kept).passed:
            raise ContractError(
                f"claims a minimal answer, but of {plan_words(plan)} {layer} can go ({case.name})"
            )


STRATEGY_PROMISES = (
    Promise(
        text="ends with a plan that passed",
        check=ends_with_a_pass,
        variations=(as_it_is, built, four_workers),
    ),
    Promise(
        text="ends with a plan that passed where a check only says pass or fail",
        check=ends_with_a_pass,
        variations=(pass_fail, lambda case: built(pass_fail(case))),
    ),
    Promise(
        text="ends with a plan that passed where others have no verdict",
        check=ends_with_a_pass,
        variations=(unresolved, lambda case: built(unresolved(case))),
    ),
    Promise(
        text="ends with a plan that passed where passing is not monotone",
        check=ends_with_a_pass,
        variations=(unsteady, lambda case: unresolved(unsteady(case))),
    ),
    Promise(
        text="ends with a plan that passed where the emulator is wrong",
        check=ends_with_a_pass,
        variations=(unforeseen_builds, lambda case: pass_fail(unforeseen_builds(case))),
    ),
    Promise(
        text="proposes the same where the outcomes are the same",
        check=repeats_itself,
        variations=(
            as_it_is,
            unresolved,
            unsteady,
            lambda case: four_workers(unforeseen_builds(case)),
        ),
    ),
    Promise(
        text="asks four workers nothing twice, and nothing it knows",
        check=asks_nothing_twice,
        variations=(
            four_workers,
            lambda case: four_workers(unresolved(case)),
            lambda case: four_workers(unforeseen_builds(case)),
        ),
    ),
    Promise(
        text="can be cut off after any batch",
        check=can_be_cut_off,
        variations=(as_it_is, lambda case: four_workers(unforeseen_builds(case))),
    ),
    Promise(
        text="ends 1-minimal where it claims that and passing is monotone",
        check=ends_minimal,
        variations=(as_it_is, pass_fail, four_workers),
    ),
)
