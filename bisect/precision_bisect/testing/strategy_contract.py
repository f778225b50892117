"""What every strategy promises, as a test that anybody can run on theirs.

`check_strategy(MyStrategy)` in a test of yours, or, for an installed entry point,
`python -m precision_bisect.testing.strategy_contract NAME`. It needs nothing but this package.
The oracles are simulated and drawn by seeds, so a violation can be had again. A search that loops
without proposing anything is caught by the command alone, which has a time limit.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

from precision_bisect.errors import ExitCode, PrecisionBisectError
from precision_bisect.machine.process_ends import how_ended
from precision_bisect.plan import Plan
from precision_bisect.plugins import STRATEGIES, load
from precision_bisect.protocols import Strategy
from precision_bisect.testing.cases import (
    Case,
    Variation,
    as_it_is,
    built,
    cases,
    four_workers,
    pass_fail,
    unforeseen_builds,
    unforeseen_side_by_side,
    unresolved,
    unsteady,
)
from precision_bisect.testing.driving import ContractError, drive, plan_words
from precision_bisect.trial import Identity, Kind, Proposal

SEEDS = range(8)
MOST_LAYERS_TRIED = 24
EXPONENTIAL = 8
"""The most layers for a strategy that states a `largest`: it may take 2^n trials."""
TIME_LIMIT_S = 60
"""The command ends after this long on one problem, with a traceback of where the search hangs."""
Factory: TypeAlias = Callable[[], Strategy]

CUTS = 6
"""A search is cut off after each of so many first batches."""


class Promise(NamedTuple):
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
    identities = {proposal.identity for batch in driven.batches for proposal in batch}
    if Proposal(plan=plan).identity not in identities:
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
    identities: set[Identity] = set()
    for number, batch in enumerate(drive(factory(), case).batches, 1):
        trials = [proposal for proposal in batch if proposal.kind is not Kind.PREDICT]
        for proposal in trials:
            if proposal.identity in identities:
                what = f"asks {plan_words(proposal.plan)} again in batch {number}"
                raise ContractError(f"{what}, when it knows the outcome ({case.name})")
        fresh = {proposal.identity for proposal in trials}
        if len(fresh) < len(trials):
            raise ContractError(f"asks a plan twice in batch {number} ({case.name})")
        identities |= fresh


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
    Promise("ends with a plan that passed", ends_with_a_pass, (as_it_is, built, four_workers)),
    Promise(
        "ends with a plan that passed where a check only says pass or fail",
        ends_with_a_pass,
        (pass_fail, lambda case: built(pass_fail(case))),
    ),
    Promise(
        "ends with a plan that passed where others have no verdict",
        ends_with_a_pass,
        (unresolved, lambda case: built(unresolved(case))),
    ),
    Promise(
        "ends with a plan that passed where passing is not monotone",
        ends_with_a_pass,
        (unsteady, lambda case: unresolved(unsteady(case))),
    ),
    Promise(
        "ends with a plan that passed where the emulator is wrong",
        ends_with_a_pass,
        (unforeseen_builds, lambda case: pass_fail(unforeseen_builds(case))),
    ),
    Promise(
        "proposes the same where the outcomes are the same",
        repeats_itself,
        (as_it_is, unresolved, unsteady, unforeseen_side_by_side),
    ),
    Promise(
        "asks four workers nothing twice, and nothing it knows",
        asks_nothing_twice,
        (four_workers, lambda case: four_workers(unresolved(case)), unforeseen_side_by_side),
    ),
    Promise("can be cut off after any batch", can_be_cut_off, (as_it_is, unforeseen_side_by_side)),
    Promise(
        "ends 1-minimal where it claims that and passing is monotone",
        ends_minimal,
        (as_it_is, pass_fail, four_workers),
    ),
)


def check_strategy(
    factory: Callable[[], Strategy], *, largest: int | None = None, seeds: Iterable[int] = SEEDS
) -> None:
    """Check every promise on problems of up to `largest` layers (24), drawn by `seeds`.

    `factory` makes a strategy, usually it is the class. Raises ContractError, an AssertionError,
    for the first promise that is broken.
    """
    describes_itself(factory)
    drawn = list(seeds)
    for promise in STRATEGY_PROMISES:
        for check in _checks(promise, factory, largest, drawn):
            check()


def _checks(
    promise: Promise, factory: Factory, largest: int | None, seeds: Iterable[int]
) -> Iterator[Callable[[], None]]:
    """Yield what checks a promise, case by case; each raises ContractError."""
    most = _most_layers(factory(), largest)
    for seed in seeds:
        for case in cases(seed, most):
            for vary in promise.variations:
                yield partial(promise.check, factory, vary(case))


def main(argv: Sequence[str] | None = None) -> int:
    """Check an installed strategy, one line for each promise; return 0, or 1 for a broken one."""
    parser = argparse.ArgumentParser(
        prog="python -m precision_bisect.testing.strategy_contract",
        description="Check that an installed strategy keeps what every strategy promises.",
    )
    parser.add_argument("name", help="its entry point, as for --strategy")
    parser.add_argument(
        "--seeds",
        type=int,
        default=len(SEEDS),
        metavar="N",
        help=f"so many times as many problems; fewer for a slow strategy ({len(SEEDS)})",
    )
    parsed = parser.parse_args(argv)
    try:
        factory: Factory = load(STRATEGIES, parsed.name)
    except PrecisionBisectError as error:
        sys.stderr.write(f"{error.one_line()}\n")
        return error.exit_code
    return _report(parsed.name, factory, range(parsed.seeds))


def _report(name: str, factory: Factory, seeds: Sequence[int]) -> int:
    """Check everything and print a line for each promise; return the exit code."""
    if not _holds("says what it is", [partial(describes_itself, factory)]):
        return ExitCode.NO_PLAN
    kept = [
        _holds("is installed under its name", [partial(_named_alike, name, factory)]),
        *(
            _holds(promise.text, _checks(promise, factory, None, seeds))
            for promise in STRATEGY_PROMISES
        ),
        _holds("proposes the same in another process", [partial(_same_elsewhere, name)]),
    ]
    return ExitCode.OK if all(kept) else ExitCode.NO_PLAN


def _holds(text: str, checks: Iterable[Callable[[], None]]) -> bool:
    """Print whether a promise is kept, and return it."""
    kept, line = True, f"kept    {text}"
    try:
        for check in checks:
            _in_time(check)
    except ContractError as error:
        kept, line = False, f"BROKEN  {text}: {error}"
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    return kept


def _in_time(check: Callable[[], None]) -> None:
    """Run a check, and end the process where it takes too long.

    Not by faulthandler: it reads the frames of a thread that goes on, and crashes now and then.
    """
    limit = threading.Timer(TIME_LIMIT_S, _end_hanging, [threading.get_ident()])
    limit.daemon = True
    limit.start()
    try:
        check()
    finally:
        limit.cancel()


def _end_hanging(thread: int) -> None:
    frames = traceback.format_stack(sys._current_frames()[thread])
    # Not sys.stderr: a promise may have taken that for what the strategy writes.
    os.write(2, f"hangs for more than {TIME_LIMIT_S:g} s:\n{''.join(frames)}".encode())
    os._exit(ExitCode.NO_PLAN)


def _named_alike(name: str, factory: Factory) -> None:
    if (own := factory().name) != name:
        raise ContractError(f"is installed as {name!r}, its name is {own!r}")


def _most_layers(strategy: Strategy, largest: int | None) -> int:
    most = MOST_LAYERS_TRIED if largest is None else largest
    return most if strategy.largest is None else min(most, strategy.largest, EXPONENTIAL)


def _same_elsewhere(name: str) -> None:
    """Check that proposals do not hang on the hashes of texts, which change with the process."""
    ask = f"from precision_bisect.testing.strategy_contract import digest; print(digest({name!r}))"
    digests = set()
    # Two seeds of hashes: sets then iterate in different orders.
    for seed in "12":
        ran = subprocess.run(
            [sys.executable, "-c", ask],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
        )
        if ran.returncode:
            how = how_ended(ran.returncode, ran.stderr)
            raise ContractError(f"another process cannot run it: it {how}")
        digests.add(ran.stdout)
    if len(digests) > 1:
        raise ContractError("two processes propose differently: it iterates over a set or hash")


def digest(name: str) -> str:
    """Return a digest of everything that a strategy proposes in a few cases."""
    factory: Factory = load(STRATEGIES, name)
    hasher = hashlib.sha256()
    for seed in SEEDS[:2]:
        for case in cases(seed, _most_layers(factory(), None)):
            for batch in drive(factory(), four_workers(case)).batches:
                hasher.update(repr([proposal.identity for proposal in batch]).encode())
    return hasher.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
