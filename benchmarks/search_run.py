"""One search on one network, real or simulated, and what it came to."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from search_algorithms import ALGORITHMS
from search_drive import (
    TOLERANCE,
    Bench,
    Certificate,
    Judge,
    OutOfCalls,
    Start,
    blind,
    certified,
    low_mask,
    outcome,
    problem,
    simulated,
)
from search_oracles import Instance, Mask, Network

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem
from precision_bisect.search.limits_and_noise import below_noise, within
from precision_bisect.trial import Kind

AGAIN = 100
"""An answer is built so many times more where builds are noisy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is searched: the problem, who judges plans, with noise and `exact`ly, and the optimum.

    `again` is the share of fresh builds of a plan that pass, None where all are alike. `most` is
    how many builds a search is given.
    """

    problem: Problem
    judge: Judge
    exact: Judge
    again: Callable[[Mask], float] | None = None
    optimum: int = 1
    most: float = math.inf


@dataclass(slots=True, kw_only=True)
class Figures:
    """What one search came to, or the mean over seeds.

    `calls` are builds; `answer` those until a plan of the final size had passed; `ratio` is the
    final size over the optimum; `minimal` and `true` are 1 where no single layer can be dropped,
    and where the plan passes, with noise and without; `again` is the share of fresh builds of it
    that pass. `cut` is 1 where the builds ran out; the figures are then those of the smallest plan
    that had passed. `rounds` and `calls_with` are by number of workers.
    """

    calls: float
    answer: float
    ratio: float
    minimal: float
    true: float
    again: float
    forecasts: float
    seconds: float
    cut: float
    rounds: dict[int, float] = field(default_factory=dict)
    calls_with: dict[int, float] = field(default_factory=dict)


def subject(instance: Instance) -> Subject:
    """Return a simulated network as what is searched."""
    return Subject(
        problem=problem(instance.size, noise=instance.noise),
        judge=simulated(instance),
        exact=lambda low, _: outcome(instance.exact.error(low)),
        again=partial(share_passing, instance.truth) if instance.noise else None,
        optimum=instance.optimum,
    )


def share_passing(network: Network, low: Mask) -> float:
    """Return the share of builds of a plan that pass, of builds that no search has asked for."""
    first = len(Kind)
    errors = (network.error(low, draw) for draw in range(first, first + AGAIN))
    return sum(error <= TOLERANCE for error in errors) / AGAIN


def search(name: str, searched: Subject, workers: Sequence[int]) -> Iterator[tuple[str, Figures]]:
    """Run one algorithm; yield its figures, per certificate where there are several.

    The figures are those with the first number of workers, the rounds those with each.
    """
    algorithm = ALGORITHMS[name]
    judge = searched.judge if algorithm.ranked else blind(searched.judge)
    results: dict[str, Figures] = {}
    for count in workers if algorithm.parallel else (1,):
        asked = replace(searched.problem, workers=count)
        asked = below_noise(asked, 0.0) if algorithm.parallel else asked
        for mode in algorithm.certificates or (None,):
            bench = Bench(judge=judge, size=asked.size, most=searched.most)
            figures = _run(algorithm.start, bench, mode, replace(searched, problem=asked))
            if not algorithm.ranked:
                figures.forecasts = 0
            figures = results.setdefault(f"{name} {mode}" if mode else name, figures)
            if algorithm.parallel:
                figures.rounds[count] = bench.rounds(count)
                figures.calls_with[count] = len(bench.calls)
            else:
                figures.rounds = {each: bench.speculated(each) for each in workers}
    yield from results.items()


def _run(start: Start, bench: Bench, mode: Certificate | None, searched: Subject) -> Figures:
    """Search, and certify where that is asked for, until the builds run out."""
    asked, cut = searched.problem, False
    try:
        if mode:
            final = certified(start, bench, asked, mode)
        else:
            final = bench.run(within(start(asked), asked.tolerance))
    except OutOfCalls:
        final, cut = bench.smallest(), True
    low = low_mask(final, searched.problem.size)
    passes = searched.judge(low, Kind.JUDGE).passed
    small = (n for n, c in enumerate(bench.calls, 1) if c.passed and c.kept <= len(final))
    return Figures(
        calls=len(bench.calls),
        answer=next(small, 0),
        ratio=len(final) / searched.optimum,
        minimal=float(passes and not cut and is_minimal(final, searched)),
        true=float(passes and searched.exact(low, Kind.JUDGE).passed),
        again=searched.again(low) if searched.again else float(passes),
        forecasts=bench.forecasts,
        seconds=bench.seconds,
        cut=float(cut),
    )


def is_minimal(plan: Plan, searched: Subject) -> bool:
    """Tell by trying every one whether no kept layer can be dropped alone."""
    low = low_mask(plan, searched.problem.size)
    for layer in np.random.default_rng(0).permutation(plan.indices):
        low[layer] = True
        if searched.judge(low, Kind.JUDGE).passed:
            return False
        low[layer] = False
    return True
