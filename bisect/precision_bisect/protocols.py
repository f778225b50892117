"""The hinge: the nouns of a run and what each promises the others.

Data flows one way. A `Strategy` proposes plans, the driver has a `Backend` evaluate them, a
`Comparator` judges the outputs, the `Ledger` remembers. No noun knows another one; only the driver
knows all four.
"""

import math
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph, SpeedLimits
from precision_bisect.trial import Evidence, Identity, Latency, Outcome, Proposal, Trial, Verdict

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from precision_bisect.layer_table import LayerName

T = TypeVar("T")

Sample: TypeAlias = "Mapping[str, NDArray[Any]]"
"""One set of named arrays: a feed, or the outputs that came of it."""

Run: TypeAlias = Callable[[Sample], Sample]
"""One inference: a feed to its outputs, by name."""
RunSample: TypeAlias = Callable[[Run, Sample], Sample]
"""How a sample is run: what is judged of one or more inferences."""


def once(run: Run, feed: Sample) -> Sample:
    """Run a sample by one inference."""
    return run(feed)


STARTED = "what the search starts from"
BEYOND_RANGE = "only layers beyond the low type's range high"
"""Why plans are tried that need no ranking."""

Search: TypeAlias = Generator[tuple[Proposal, ...], tuple[Outcome, ...], T]
"""A deterministic search: yields batches of proposals, receives their outcomes in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What a strategy may know: how many layers, their names, the limit, the seed.

    `names` are in network order, `modules` those that the layers belong to, empty where no layer
    has one. `tolerance` is the limit on `Outcome.error`, or None where the
    check has no figure. The preflight has shown that all-high passes and all-low fails.
    `builds` tells that trials are builds of an engine, which cost far more than asking the
    emulator (`Kind.PREDICT`); False where the emulator judges the trials themselves. `workers` is
    the number of proposals of one batch that are evaluated side by side. `noise` is the error
    between two builds of the same plan, on the tolerance's scale. `costs` says what keeping each
    layer costs, in any unit; empty where every layer counts the same. `graph` says what plans cost
    and which layers exchange values, where speed counts; `speed` are the speed limits, if any.
    `unit` is half the distance from 1 to the next number of the low type. `passing` is a plan that
    is known to pass before the search begins, if any. `beyond_range` finds the plan that keeps
    what leaves the low type's range, None where nothing does; it costs inferences, once.
    `overflowing` is the same without what only carries a mask of attention.
    `start` is a plan to try before the search, and to refine if it passes; None for none.
    `forecast_s` is how many seconds the ranking may take, by what its outcomes took.
    `together` has layers that the target makes one kernel of if all of them run low. `roles` gives
    each layer's role, which layers that repeat each other share; none where that is not known.
    `as_deployed` tells that every build has the options of the deployment, `large` that the model
    is so large that a forecast costs as much as a build. If the problem is `settled`, `passing` is
    the answer, and only has to be certified.
    """

    names: Sequence[str]
    tolerance: float | None
    modules: Sequence[str] = ()
    seed: int = 0
    builds: bool = False
    workers: int = 1
    noise: float = 0.0
    costs: Sequence[float] = ()
    graph: CostGraph | None = None
    speed: SpeedLimits | None = None
    unit: float = 2.0**-11
    passing: Plan | None = None
    start: Plan | None = None
    beyond_range: Callable[[], Plan | None] = lambda: None
    overflowing: Callable[[], Plan | None] = lambda: None
    forecast_s: float = math.inf
    together: Sequence[Sequence[int]] = ()
    roles: Callable[[], Sequence[object]] = tuple
    as_deployed: bool = False
    large: bool = False
    settled: bool = False

    @property
    def size(self) -> int:
        """The number of candidate layers."""
        return len(self.names)

    def cost(self, plan: Plan) -> float:
        """Return what searches make small: the costs of the kept layers, else their number."""
        return sum(self.costs[layer] for layer in plan.indices) if self.costs else len(plan)

    @property
    def first_plans(self) -> Sequence[tuple[Plan, str]]:
        """The plans to try before any ranking, each with the reason; all-high is none of them."""
        plans = ((self.start, STARTED), (self.beyond_range(), BEYOND_RANGE))
        choices = ((plan, why) for plan, why in plans if plan and len(plan) < self.size)
        return tuple(choices)

    @property
    def top(self) -> Plan:
        """The plan to begin at, which passes: the one that is known to, else every layer high."""
        return Plan.all_high(self.size) if self.passing is None else self.passing

    @property
    def timed(self) -> bool:
        """Whether each build of the curve is timed: speed counts, or no build has to wait for it.

        Builds that are timed run one by one.
        """
        return self.builds and (self.graph is not None or (self.as_deployed and self.workers == 1))


class Strategy(Protocol):
    """Proposes plans and ends with one that passed.

    `search` must be deterministic given the problem and the outcomes, must not evaluate, print,
    time or persist, and must return a plan for which it received a pass. `assumption` says in one
    sentence what must hold for its answer to be small; `minimal` whether it claims that no single
    kept layer can be dropped, in which case the driver certifies that claim; `largest` the most
    layers that it takes, None for any number.
    """

    name: ClassVar[str]
    assumption: ClassVar[str]
    minimal: ClassVar[bool]
    largest: ClassVar[int | None]

    def search(self, problem: Problem) -> Search[Plan]:
        """Propose plans until one is known to be the answer."""
        ...


@runtime_checkable
class Checked(Protocol):
    """A strategy that needs more than this package."""

    def check(self) -> None:
        """Raise PluginError where something is missing, before any work."""
        ...


@runtime_checkable
class WeighsSpeed(Protocol):
    """A strategy that looks at what plans cost, `Problem.graph`."""

    weighs_speed: ClassVar[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A comparator's word on one trial; see `Outcome` and `Evidence` for the fields."""

    verdict: Verdict
    error: float | None
    message: str = ""
    by_classes: bool = False
    dropped_nan: Sequence[str] = ()


class Comparator(Protocol):
    """Judges outputs against the reference.

    `tolerance` is the limit on the error figure, None for a pass/fail check. With a figure, the
    verdict is a pass exactly when `error <= tolerance`. NaN or Inf in an output never passes. With
    several workers `judge` is called by several threads at a time.
    """

    @property
    def tolerance(self) -> float | None: ...

    def settings(self) -> Mapping[str, Any]:
        """Return everything that decides a verdict, as JSON-able values, for the fingerprint."""
        ...

    def judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        """Judge the outputs of all samples, in the same order as the reference."""
        ...


@runtime_checkable
class JudgesEach(Protocol):
    """A comparator that judges each sample by itself: the worst is verdict and figure."""

    judges_each: ClassVar[bool]


class DroppedNan(dict[str, Any]):
    """The outputs of one feed that are finite only because `layers` drop a NaN which FP32 has not.

    An engine that keeps it gives NaN: such outputs never pass.
    """

    def __init__(self, outputs: Sample, layers: Sequence[str]) -> None:
        super().__init__(outputs)
        self.layers = layers


def dropping(outputs: Sequence[Sample]) -> Sequence[str]:
    """Return the layers that drop a NaN which FP32 has not, in any of the samples."""
    dropped = (sample.layers for sample in outputs if isinstance(sample, DroppedNan))
    return [*dict.fromkeys(layer for layers in dropped for layer in layers)]


class BackendFailure(Exception):
    """A plan that could not be built or run: an outcome, not an error of the tool.

    Raised by backends with the `Outcome` (status and message) that the trial ends with.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


class Engine(Protocol):
    """A plan that was built. Leaving its context frees what it holds on the device."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def run(self, feed: Sample) -> Sample:
        """Return the outputs, by name, for one feed. Raises BackendFailure."""
        ...

    def time(self, feed: Sample) -> Latency | None:
        """Measure the latency; None where figures would mean nothing. Raises BackendFailure."""
        ...

    def evidence(self) -> Evidence:
        """Return what the build showed: kept layers honoured or not, remarks. No latency."""
        ...

    def save(self, folder: Path) -> None:
        """Write what is worth keeping of this engine into a folder, if anything."""
        ...


@runtime_checkable
class Several(Protocol):
    """An engine that stands for several, which may compute otherwise: a plan must pass on each."""

    @property
    def ways(self) -> Sequence[Engine]: ...


class Described(Protocol):
    """What a backend says of itself.

    `emulated` is True when results are predictions rather than an engine's own.
    """

    @property
    def name(self) -> str: ...

    @property
    def emulated(self) -> bool: ...

    def versions(self) -> Mapping[str, str]:
        """Return versions and device names that results depend on, for the fingerprint."""
        ...

    def unbuildable(self) -> "Mapping[LayerName, str]":
        """Return the candidates that cannot run low on this backend, each with the reason."""
        ...


class Backend(Described, Protocol):
    """Builds plans.

    With several workers `build` is called by several threads at a time, each of which has its
    engine to itself.
    """

    def build(self, plan: Plan, *, afresh: bool = False) -> Engine:
        """Build the plan, or build it `afresh`: as deployed, and as if nothing had been built.

        Otherwise it may be built by options that are quick to build. Raises `BackendFailure`.
        """
        ...


@runtime_checkable
class Hasty(Protocol):
    """A backend that may build by other options than the deployment's, where not `afresh`."""

    @property
    def hasty(self) -> bool: ...


class Ledger(Protocol):
    """Remembers trials, durably.

    `start` is durable before the trial begins, `finish` before the driver goes on; a finished
    trial never changes. `withdraw` takes back the start of a trial that was broken off through no
    fault of its plan. `orphans` are the trials that have begun and neither ended nor been
    withdrawn: a process ended during them. `reopen` makes an orphan of a finished trial that says
    nothing of its plan: it is tried again when the run is resumed.
    """

    def start(self, proposal: Proposal) -> None: ...

    def finish(self, proposal: Proposal, outcome: Outcome) -> None: ...

    def withdraw(self, proposal: Proposal) -> None: ...

    def reopen(self, proposal: Proposal) -> None: ...

    def trials(self) -> Sequence[Trial]: ...

    def orphans(self) -> Collection[Identity]: ...
