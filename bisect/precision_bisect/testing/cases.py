"""Problems for contract tests, drawn by a seed: small networks under every kind of oracle.

Oracles say what a plan, given as the set of kept layers, comes to. The tolerance of all is
`TOLERANCE`; each passes all-high and fails all-low unless its arguments say otherwise.
"""

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from precision_bisect.layer_table import scope_of
from precision_bisect.protocols import Problem
from precision_bisect.trial import Outcome, TrialStatus, Verdict

TOLERANCE = 1.0
Oracle = Callable[[frozenset[int]], Outcome]


def outcome(error: float) -> Outcome:
    """Return the finished outcome with this error."""
    verdict = Verdict.PASS if error <= TOLERANCE else Verdict.FAIL
    return Outcome(status=TrialStatus.FINISHED, verdict=verdict, error=error)


def monotone(culprits: Collection[int]) -> Oracle:
    """Pass exactly when every culprit is kept; else the outputs overflow."""
    needed = frozenset(culprits)
    return lambda kept: outcome(0.0 if needed <= kept else float("inf"))


def additive(errors: Sequence[float]) -> Oracle:
    """Let the errors of the layers that are not kept add up."""
    return lambda kept: outcome(sum(e for i, e in enumerate(errors) if i not in kept))


def clustered(clusters: Sequence[Collection[int]]) -> Oracle:
    """Let each cluster cost an error of 2 unless all of it is kept: no member helps alone."""
    whole = [frozenset(cluster) for cluster in clusters]
    return lambda kept: outcome(sum(2.0 for cluster in whole if not cluster <= kept))


def interacting(pairs: Sequence[tuple[int, int]]) -> Oracle:
    """Fail when both of a pair run low: each alone is harmless, one of the two must be kept."""
    return lambda kept: outcome(0.1 + 2.0 * sum(a not in kept and b not in kept for a, b in pairs))


def non_monotone(size: int, seed: int) -> Oracle:
    """Pass and fail as a hash of the plan says; all-high passes and all-low fails."""

    def judge(kept: frozenset[int]) -> Outcome:
        if len(kept) in (0, size):
            return outcome(0.0 if kept else 2.0)
        return outcome(random.Random(f"{seed}:{sorted(kept)}").uniform(0.0, 2.0))

    return judge


def flaky(oracle: Oracle, size: int, seed: int, share: float = 0.2) -> Oracle:
    """Let a share of the plans, always the same ones, fail to build: no verdict."""

    def judge(kept: frozenset[int]) -> Outcome:
        luck = random.Random(f"{seed}:{sorted(kept)}").random()
        if 0 < len(kept) < size and luck < share:
            return Outcome(status=TrialStatus.BUILD_FAILED, message="no implementation")
        return oracle(kept)

    return judge


def without_figures(oracle: Oracle) -> Oracle:
    """Take the figure away: a check that only says yes or no."""
    return lambda kept: replace(oracle(kept), error=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A problem, what decides it, and what the emulator says of it.

    `name` says how to get it again. Cases as `cases` yields them are monotone: keeping more layers
    never hurts.
    """

    name: str
    seed: int
    problem: Problem
    oracle: Oracle
    emulator: Oracle


Variation: TypeAlias = Callable[[Case], Case]


def cases(seed: int, largest: int) -> Iterator[Case]:
    """Yield a case of every kind of monotone oracle, and one of a single layer.

    Networks have 2 to `largest` layers; half of the seeds give names with scopes. Where `largest`
    is 1 there is the single layer alone.
    """
    rng = random.Random(f"cases:{seed}")
    yield _case("single layer", seed, 1, monotone([0]))
    if largest < 2:
        return
    size = rng.randint(2, largest)
    needed = rng.sample(range(size), rng.randint(1, size))
    yield _case(f"culprits {sorted(needed)}", seed, size, monotone(needed))
    few = sorted(rng.sample(range(largest), min(2, largest)))
    yield _case(f"culprits {few}", seed, largest, monotone(few))
    clusters = [range(at, min(at + 3, size)) for at in rng.sample(range(size), min(2, size))]
    yield _case("clusters", seed, size, clustered(clusters))
    pairs = [(rng.randrange(size), rng.randrange(size)) for _ in range(3)]
    yield _case(f"pairs {pairs}", seed, size, interacting(pairs))
    errors = [rng.lognormvariate(0, 2) for _ in range(largest)]
    share = rng.uniform(0.05, 0.95)
    errors = [error * TOLERANCE / (share * sum(errors)) for error in errors]
    yield _case(f"errors that add up to {1 / share:.3g}", seed, largest, additive(errors))


def as_it_is(case: Case) -> Case:
    """Change nothing."""
    return case


def pass_fail(case: Case) -> Case:
    """Take the figures away, the oracle's and the emulator's."""
    return replace(
        case,
        name=f"{case.name}, pass or fail alone",
        problem=replace(case.problem, tolerance=None),
        oracle=without_figures(case.oracle),
        emulator=without_figures(case.emulator),
    )


def unresolved(case: Case) -> Case:
    """Let a third of the plans fail to build, in the emulator others than on the engine."""
    size = case.problem.size
    return replace(
        case,
        name=f"{case.name}, a third of the plans without a verdict",
        oracle=flaky(case.oracle, size, case.seed, 1 / 3),
        emulator=flaky(case.emulator, size, case.seed + 1, 1 / 3),
    )


def unsteady(case: Case) -> Case:
    """Let plans pass and fail at random, the same plan always the same."""
    oracle = non_monotone(case.problem.size, case.seed)
    return replace(case, name="passing at random", oracle=oracle, emulator=oracle)


def built(case: Case) -> Case:
    """Let trials be builds of an engine, which the emulator predicts rightly."""
    return replace(case, name=f"{case.name}, built", problem=replace(case.problem, builds=True))


def unforeseen_builds(case: Case) -> Case:
    """Let trials be builds of an engine, of which the emulator knows nothing."""
    return replace(
        case,
        name=f"{case.name}, a wrong emulator",
        problem=replace(case.problem, builds=True),
        emulator=non_monotone(case.problem.size, case.seed),
    )


def four_workers(case: Case) -> Case:
    """Let four proposals be evaluated side by side."""
    problem = replace(case.problem, workers=4)
    return replace(case, name=f"{case.name}, four workers", problem=problem)


def unforeseen_side_by_side(case: Case) -> Case:
    """Let four builds be evaluated side by side, of which the emulator knows nothing."""
    return four_workers(unforeseen_builds(case))


def _case(what: str, seed: int, size: int, oracle: Oracle) -> Case:
    names = [
        f"/stage.{i // 8}/block.{i // 3}/op.{i}" if seed % 2 else f"op.{i}" for i in range(size)
    ]
    return Case(
        name=f"{what} of {size} layers, seed {seed}",
        seed=seed,
        problem=Problem(
            names=names,
            modules=[scope_of(name) for name in names] if seed % 2 else (),
            tolerance=TOLERANCE,
            seed=seed,
        ),
        oracle=oracle,
        emulator=oracle,
    )
