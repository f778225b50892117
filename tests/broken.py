"""Strategies that are broken on purpose, each in one way; `Careless` keeps every promise."""

import itertools
import random
from typing import Any, ClassVar

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.trial import Kind, Proposal


class Careless:
    """Proposes to drop one layer, and returns all-high: it keeps every promise."""

    name: ClassVar[str] = "careless"
    assumption: ClassVar[str] = "nobody looks"
    minimal: ClassVar[bool] = False
    largest: ClassVar[int | None] = None

    def search(self, problem: Problem) -> Search[Plan]:
        """Ask once."""
        yield (drop(problem, 0),)
        return Plan.all_high(problem.size)


def drop(problem: Problem, layer: int, kind: Kind = Kind.JUDGE) -> Proposal:
    """Return the proposal to drop one layer from all-high."""
    return Proposal(plan=Plan.all_high(problem.size).without((layer,)), kind=kind)


class Failing(Careless):
    """Returns the plan that it tried, whatever came of it."""

    def search(self, problem: Problem) -> Search[Plan]:
        """Do not look at the outcome."""
        yield (drop(problem, 0),)
        return drop(problem, 0).plan


class Untried(Careless):
    """Returns a plan that it did not try."""

    def search(self, problem: Problem) -> Search[Plan]:
        """Try one, return another."""
        (outcome,) = yield (drop(problem, 0),)
        return Plan.of((0,)) if outcome.passed else Plan.all_high(problem.size)


class Chancy(Careless):
    """Proposes by chance that the seed does not decide."""

    def search(self, problem: Problem) -> Search[Plan]:
        """Draw a layer."""
        yield (drop(problem, random.randrange(problem.size)),)
        return Plan.all_high(problem.size)


class Mindful(Careless):
    """Remembers in itself what it did in an earlier search."""

    def __init__(self) -> None:
        self.searched = False

    def search(self, problem: Problem) -> Search[Plan]:
        """Begin elsewhere the second time."""
        yield (drop(problem, problem.size - 1 if self.searched else 0),)
        self.searched = True
        return Plan.all_high(problem.size)


class Forgetful(Careless):
    """Asks what it knows."""

    def search(self, problem: Problem) -> Search[Plan]:
        """Ask twice."""
        yield (drop(problem, 0),)
        yield (drop(problem, 0),)
        return Plan.all_high(problem.size)


class Doubling(Careless):
    """Fills its batches with the same plan."""

    def search(self, problem: Problem) -> Search[Plan]:
        """Give all workers the same."""
        yield (drop(problem, 0),) * problem.workers
        return Plan.all_high(problem.size)


class Endless(Careless):
    """Never ends."""

    def search(self, problem: Problem) -> Search[Plan]:
        """Ask on and on."""
        for layer in itertools.cycle(range(problem.size)):
            yield (drop(problem, layer),)
        return Plan.all_high(problem.size)


class Dreaming(Careless):
    """Never ends to ask the emulator."""

    def search(self, problem: Problem) -> Search[Plan]:
        """Predict on and on."""
        for layer in itertools.cycle(range(problem.size)):
            yield (drop(problem, layer, Kind.PREDICT),) * 1000
        return Plan.all_high(problem.size)


class Boastful(Careless):
    """Claims that all-high is minimal."""

    minimal: ClassVar[bool] = True


class Beyond(Careless):
    """Counts layers from 1."""

    def search(self, problem: Problem) -> Search[Plan]:
        """Keep a layer that does not exist."""
        yield (Proposal(plan=Plan.of((problem.size,))),)
        return Plan.all_high(problem.size)


class Empty(Careless):
    """Proposes nothing."""

    def search(self, problem: Problem) -> Search[Plan]:
        """Yield an empty batch."""
        yield ()
        return Plan.all_high(problem.size)


class Listing(Careless):
    """Yields lists."""

    def search(self, problem: Problem) -> Any:
        """Yield no tuple."""
        yield [drop(problem, 0)]
        return Plan.all_high(problem.size)


class Nothing(Careless):
    """Returns nothing."""

    def search(self, problem: Problem) -> Any:
        """Forget to return the plan."""
        yield (drop(problem, 0),)


class Talking(Careless):
    """Prints."""

    def search(self, problem: Problem) -> Search[Plan]:
        """Say something."""
        print("halfway there")  # noqa: T201
        yield (drop(problem, 0),)
        return Plan.all_high(problem.size)


class Trusting(Careless):
    """Takes it that every outcome has a figure."""

    def search(self, problem: Problem) -> Search[Plan]:
        """Compare the error."""
        (outcome,) = yield (drop(problem, 0),)
        if outcome.error <= 1:  # type: ignore[operator]
            return drop(problem, 0).plan
        return Plan.all_high(problem.size)


class Stubborn(Careless):
    """Goes on when it is closed."""

    def search(self, problem: Problem) -> Search[Plan]:
        """Yield in the face of GeneratorExit."""
        try:
            yield (drop(problem, 0),)
        except GeneratorExit:
            yield (drop(problem, 0),)
        return Plan.all_high(problem.size)


class Demanding(Careless):
    """Cannot be made without arguments."""

    def __init__(self, budget: int) -> None:
        self.budget = budget


class Mute(Careless):
    """Does not say what it assumes."""

    assumption: ClassVar[str] = ""
