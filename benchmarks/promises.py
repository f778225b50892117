"""In how many searches the promise about unseen inputs is broken, by how samples were drawn.

Each search gets 60 samples: as drawn, few of them again and again, nearly so, or sorted. What a
sample needs is simulated: one layer always, three others the rarer the input. So the true share of
inputs over the limit is known. All else is the tool's own: how samples are compared, divided,
searched with and counted.
`python benchmarks/promises.py --out benchmarks/results/promises.json`
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.random import Generator

from precision_bisect.judging.inputs.distinct import Distinct, distinct
from precision_bisect.pipeline.choosing import promised
from precision_bisect.pipeline.course import Course, flow
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.search.sample_sets import SampleSets, divided
from precision_bisect_strategies.guided import Guided

sys.path.append(str(Path(__file__).parents[1] / "tests"))

import oracles
from simulated import SIZE, Simulated, driver_of

GIVEN, WIDTH, HELD_OUT = 60, 400, 20
SPREAD = 0.6
"""The standard deviation of the logarithm of an input's size."""
ALWAYS = 2
RARE: Mapping[int, float] = {5: 0.1, 7: 0.04, 9: 0.02}
"""By layer, the share of inputs that need it: the largest, and those of a large mean of a part."""
Samples: TypeAlias = Sequence[Sample]


class Drawn(NamedTuple):
    """Samples for a search, and how many of them are held out."""

    samples: Samples
    holdout: int = 0


class Promised(NamedTuple):
    """What a search promised by `judged` samples, and what is true of its answer."""

    judged: int
    share_at_most: float
    true_share: float

    @property
    def broken(self) -> bool:
        """Whether more inputs are over than promised."""
        return self.true_share > self.share_at_most


def fresh(rng: Generator, count: int = GIVEN) -> Samples:
    """Draw so many inputs, the size of which is log-normal."""
    sizes = np.exp(rng.normal(0, SPREAD, count))
    return [{"x": (size * rng.normal(0, 1, WIDTH)).astype(np.float32)} for size in sizes]


def repeated(of: int, change: float = 0.0) -> Callable[[Generator], Drawn]:
    """Return what draws so few inputs, and gives each again and again, changed by that share."""

    def draw(rng: Generator) -> Drawn:
        inputs = [sample["x"] for sample in fresh(rng, of)]
        given = (inputs[number % of] for number in range(GIVEN))
        changed = (x * (1 + change * rng.normal(0, 1, x.shape)) for x in given)
        return Drawn([{"x": x.astype(np.float32)} for x in changed])

    return draw


def in_order(*, largest_first: bool) -> Callable[[Generator], Drawn]:
    """Return what draws inputs and sorts them by their size; some are held out."""

    def draw(rng: Generator) -> Drawn:
        samples = sorted(fresh(rng), key=lambda sample: _size(sample["x"]), reverse=largest_first)
        return Drawn(samples, HELD_OUT)

    return draw


KINDS: Mapping[str, Callable[[Generator], Drawn]] = {
    "independent": lambda rng: Drawn(fresh(rng)),
    "independent, 20 held out": lambda rng: Drawn(fresh(rng), HELD_OUT),
    "1 input 60 times": repeated(1),
    "2 inputs 30 times": repeated(2),
    "6 inputs 10 times": repeated(6),
    "30 inputs twice": repeated(30),
    "1 input, changed by 1e-5": repeated(1, 1e-5),
    "2 inputs, changed by 1e-4": repeated(2, 1e-4),
    "6 inputs, changed by 1e-3": repeated(6, 1e-3),
    "30 inputs, changed by 1e-4": repeated(30, 1e-4),
    "smallest first, 20 held out": in_order(largest_first=False),
    "largest first, 20 held out": in_order(largest_first=True),
}
"""By what they are called, the ways to draw the samples of a search."""


def _size(x: Any) -> float:
    return float(np.sqrt((x.astype(np.float64) ** 2).mean()))


def _needs(sample: Sample) -> frozenset[int]:
    """Return the layers that an input needs."""
    x, size = sample["x"], _size(sample["x"])
    parts = np.array_split(x / size, len(RARE) - 1)
    large = [math.log(size) / SPREAD, *(part.sum() / math.sqrt(part.size) for part in parts)]
    rare = (
        layer
        for value, (layer, share) in zip(large, RARE.items(), strict=True)
        if value > NormalDist().inv_cdf(1 - share)
    )
    return frozenset({ALWAYS, *rare})


def _error(plan: Plan, sample: Sample) -> float:
    return 0.5 if _needs(sample) <= plan.kept else 5.0


def search(drawn: Drawn, seed: int, new: Distinct | None = None) -> Promised | None:
    """Search with drawn samples; None where nothing was promised. `new` are all unless given."""
    new = new or distinct(drawn.samples)
    held_out, pool = divided(new, drawn.holdout, seed, each=True)
    zeros: Samples = [{"y": np.zeros(1)} for _ in drawn.samples]
    sets = SampleSets(
        feeds=drawn.samples,
        pool=pool,
        reference=[zeros[number] for number in pool],
        held_out=held_out,
        given=zeros,
        distinct=new,
    )
    others = sets.others > 0
    course = Course(pool=pool if others else (), others=others, held_out=bool(held_out))
    with tempfile.TemporaryDirectory() as work:
        driver, ledger = driver_of(Path(work), Simulated(_error), sets=sets)
        with ledger:
            ending = driver.run(flow(oracles.problem(SIZE), Guided(), course))
        assert ending.plan is not None
        told = promised(driver.trials, ending.plan, sets)
    if told is None or not told.judged:
        return None
    lacking = [share for layer, share in RARE.items() if layer not in ending.plan.kept]
    true_share = 1 - math.prod(1 - share for share in lacking)
    return Promised(told.judged, told.share_at_most, true_share)


def searches(kind: str, draws: int, *, every: bool) -> Iterator[Promised | None]:
    """Search with so many draws; with `every` sample taken for a new one."""
    for draw in range(draws):
        drawn = KINDS[kind](np.random.default_rng(([*KINDS].index(kind), draw)))
        yield search(drawn, draw, Distinct.all_of(GIVEN) if every else None)


def measured(kind: str, draws: int, *, every: bool = False) -> dict[str, Any]:
    """Return in how many searches something was promised, and in how many that was broken."""
    told = [each for each in searches(kind, draws, every=every) if each is not None]
    return {
        "samples": kind,
        "counted": "all" if every else "distinct",
        "draws": draws,
        "promised": len(told),
        "broken": sum(each.broken for each in told),
        "judged": [f(each.judged for each in told) for f in (min, max)] if told else None,
    }


def main() -> None:
    """Print a row for each kind of draw, and write all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rows = []
    for kind in asked.kinds:
        for every in (False, True):
            rows.append(measured(kind, asked.draws, every=every))
            print(json.dumps(rows[-1]), flush=True)
            if asked.out is not None:
                asked.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
