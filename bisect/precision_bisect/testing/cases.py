"""Problems for contract tests, drawn by a seed: small networks under every kind of oracle."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from precision_bisect.layer_table import scope_of
from precision_bisect.protocols import Problem
from precision_bisect.testing import oracles
from precision_bisect.testing.oracles import Oracle


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
    yield _case("single layer", seed, 1, oracles.monotone([0]))
    if largest < 2:
        return
    size = rng.randint(2, largest)
    needed = rng.sample(range(size), rng.randint(1, size))
    yield _case(f"culprits {sorted(needed)}", seed, size, oracles.monotone(needed))
    few = sorted(rng.sample(range(largest), min(2, largest)))
    yield _case(f"culprits {few}", seed, largest, oracles.monotone(few))
    clusters = [range(at, min(at + 3, size)) for at in rng.sample(range(size), min(2, size))]
    yield _case("clusters", seed, size, oracles.clustered(clusters))
    pairs = [(rng.randrange(size), rng.randrange(size)) for _ in range(3)]
    yield _case(f"pairs {pairs}", seed, size, oracles.interacting(pairs))
    errors = [rng.lognormvariate(0, 2) for _ in range(largest)]
    share = rng.uniform(0.05, 0.95)
    errors = [error * oracles.TOLERANCE / (share * sum(errors)) for error in errors]
    yield _case(f"errors that add up to {1 / share:.3g}", seed, largest, oracles.additive(errors))


def as_it_is(case: Case) -> Case:
    """Change nothing."""
    return case


def pass_fail(case: Case) -> Case:
    """Take the figures away, the oracle's and the emulator's."""
    return replace(
        case,
        name=f"{case.name}, pass or fail alone",
        problem=replace(case.problem, tolerance=None),
        oracle=oracles.without_figures(case.oracle),
        emulator=oracles.without_figures(case.emulator),
    )


def unresolved(case: Case) -> Case:
    """Let a third of the plans fail to build, in the emulator others than on the engine."""
    size = case.problem.size
    return replace(
        case,
        name=f"{case.name}, a third of the plans without a verdict",
        oracle=oracles.flaky(case.oracle, size, case.seed, 1 / 3),
        emulator=oracles.flaky(case.emulator, size, case.seed + 1, 1 / 3),
    )


def unsteady(case: Case) -> Case:
    """Let plans pass and fail at random, the same plan always the same."""
    oracle = oracles.non_monotone(case.problem.size, case.seed)
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
        emulator=oracles.non_monotone(case.problem.size, case.seed),
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
            tolerance=oracles.TOLERANCE,
            seed=seed,
        ),
        oracle=oracle,
        emulator=oracle,
    )
