"""Error against latency: the guided answer, then what lies around it, by groups of layers.

Optuna explores few variables well, so layers are put into some 24 groups first. Its study is in
memory; a storage gets a copy of it to look at. Proposals depend only on the seed and the outcomes,
so a resumed search comes to the same place, and finds its trials in the copy.
"""

import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from precision_bisect.errors import PluginError
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import Pace
from precision_bisect.protocols import Problem, Search
from precision_bisect.search.speed.forecast import emulated_outcomes
from precision_bisect.search.speed.measuring import all_high_ms, judge_timed
from precision_bisect.trial import Outcome, Proposal
from precision_bisect_strategies.asking import unrepeated
from precision_bisect_strategies.guided import Guided
from precision_bisect_strategies.modules import Group, few_groups, label

if TYPE_CHECKING:
    import optuna

HIGH_CHOICE, LOW_CHOICE = "high", "low"
_INSTALL = "install it: pip install optuna"
DIRECTIONS = ("minimize", "minimize")


@contextmanager
def optuna_quiet() -> Iterator[None]:
    """Keep Optuna's own log lines and its warnings of experimental features off the screen."""
    library = load_optuna()
    before = library.logging.get_verbosity()
    library.logging.set_verbosity(library.logging.ERROR)
    try:
        with warnings.catch_warnings():
            # Every call warns of experimental features, which users of this tool cannot avoid.
            warnings.simplefilter("ignore")
            yield
    finally:
        library.logging.set_verbosity(before)


def load_optuna() -> Any:
    """Return the module. Raises PluginError where it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise PluginError(f"Optuna does not load: {error}", _INSTALL) from error
    return optuna


def open_storage(url: str) -> "optuna.storages.BaseStorage":
    """Return the storage at a URL, created if need be. Raises PluginError for one that fails."""
    library = load_optuna()
    try:
        with optuna_quiet():
            storage: optuna.storages.BaseStorage = library.storages.get_storage(url)
            return storage
    except Exception as error:  # SQLAlchemy's, the database driver's and Optuna's own
        raise _failed(url, error, "give a URL of SQLAlchemy, as sqlite:///pareto.db") from error


class Study:
    """A study with two objectives, both to be minimized, over variables that are high or low.

    It proposes by the multi-objective tree-structured Parzen estimator (Y. Ozaki et al.,
    "Multiobjective tree-structured Parzen estimator for computationally expensive optimization
    problems", GECCO 2020), which needs fewer trials than a genetic algorithm with generations
    (NSGA-II).
    """

    def __init__(self, variables: Sequence[str], seed: int) -> None:
        self._variables = variables
        with optuna_quiet():
            library = load_optuna()
            sampler = library.samplers.TPESampler(seed=seed)
            self._study = library.create_study(directions=DIRECTIONS, sampler=sampler)

    def enqueue(self, high: Sequence[bool]) -> None:
        """Make these values the next proposal."""
        words = [HIGH_CHOICE if value else LOW_CHOICE for value in high]
        with optuna_quiet():
            self._study.enqueue_trial(dict(zip(self._variables, words, strict=True)))

    def ask(self) -> "tuple[optuna.Trial, tuple[bool, ...]]":
        """Return a trial and which variables are high in it."""
        with optuna_quiet():
            trial = self._study.ask()
            chosen = [
                trial.suggest_categorical(name, (LOW_CHOICE, HIGH_CHOICE))
                for name in self._variables
            ]
        return trial, tuple(choice == HIGH_CHOICE for choice in chosen)

    def tell(
        self,
        trial: "optuna.Trial",
        values: tuple[float, float] | None,
        attributes: Mapping[str, Any],
    ) -> "optuna.trial.FrozenTrial":
        """Return the trial, ended with these values; without any it counts as failed."""
        with optuna_quiet():
            for key, value in attributes.items():
                trial.set_user_attr(key, value)
            state = load_optuna().trial.TrialState.FAIL if values is None else None
            ended: optuna.trial.FrozenTrial = self._study.tell(trial, values, state)
        return ended


class Mirror:
    """A copy of a study in a storage, trial by trial as they end, for optuna-dashboard.

    A study of that name is continued if its trials are the same as those that come: it is that of
    the run being resumed. Otherwise the name gets a number. Raises PluginError where the storage
    fails.
    """

    def __init__(self, url: str, name: str, objectives: tuple[str, str]) -> None:
        self._url = url
        self._storage = open_storage(url)
        self._name = name
        self._objectives = objectives
        self._trials: list[optuna.trial.FrozenTrial] = []
        self._number = 0
        self._study: Any = None
        self._there: list[optuna.trial.FrozenTrial] = []

    def add(self, trial: "optuna.trial.FrozenTrial") -> None:
        """Copy a trial that has ended, unless it is there."""
        self._trials.append(trial)
        try:
            with optuna_quiet():
                # Names are tried one by one until a study is empty or begins with the same trials.
                while self._study is None or not self._continues():
                    self._open_next()
                for missing in self._trials[len(self._there) :]:
                    self._study.add_trial(missing)
                    self._there.append(missing)
        except Exception as error:  # SQLAlchemy's, the database driver's and Optuna's own
            raise _failed(self._url, error, "mend it, then go on with --resume") from error

    def _continues(self) -> bool:
        pairs = zip(self._there, self._trials, strict=False)
        return all(_key(there) == _key(come) for there, come in pairs)

    def _open_next(self) -> None:
        self._number += 1
        self._study = load_optuna().create_study(
            storage=self._storage,
            study_name=f"{self._name} ({self._number})" if self._number > 1 else self._name,
            directions=DIRECTIONS,
            load_if_exists=True,
        )
        self._study.set_metric_names(self._objectives)
        self._there = self._study.get_trials()


def _key(trial: "optuna.trial.FrozenTrial") -> tuple[Any, ...]:
    """Return what makes two trials the same."""
    return trial.params, trial.state, trial.values


def _failed(url: str, error: Exception, hint: str) -> PluginError:
    lines = str(error).splitlines() or [type(error).__name__]
    return PluginError(f"--optuna-storage {url!r} fails: {lines[0]}", hint)


FURTHER_TRIALS = 40
"""Plans that are tried beyond those of the guided search. A bound on builds. Half: builds -37%;
double: builds +74%, in benchmarks/constants.py."""
MOST_ASKED = 2 * FURTHER_TRIALS
"""Proposals after which the exploration ends: Optuna proposes known plans more and more often."""
KEPT_GROUPS = 12
"""Groups of the layers that the guided plan keeps, at most."""
NEAR_GROUPS = 11
"""Groups of low layers that become variables: those whose keeping is forecast to save most. With
the kept ones and one group of all others there are 24 variables at most. Half and double change no
more than chance does in benchmarks/constants.py."""
LOW_GROUPS = 24
"""Groups that the guided plan's low layers are forecast in. Half: forecasts -11%; double:
forecasts +16%, in benchmarks/constants.py."""
LARGEST_RATIO = 1e3
"""Multiples of the tolerance that a larger, or infinite, error counts as: Optuna needs finite
figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """Turns outcomes into Optuna's two objectives; `high_ms` is None where nothing is timed."""

    problem: Problem
    high_ms: float | None

    @property
    def objectives(self) -> tuple[str, str]:
        """Their names."""
        return ("error", "latency in ms" if self.high_ms is not None else "estimated cost")

    def values(self, plan: Plan, outcome: Outcome) -> tuple[float, float] | None:
        """Return error and latency or estimated cost; None without a verdict or a figure."""
        if outcome.verdict is None:
            return None
        speed = self.slowness(plan, outcome)
        if outcome.error is None:
            error = 0.0 if outcome.passed else 1.0
        else:
            limit = LARGEST_RATIO * (self.problem.tolerance or 1.0)
            error = min(outcome.error, limit) if math.isfinite(outcome.error) else limit
        return None if speed is None else (error, speed)

    def slowness(self, plan: Plan, outcome: Outcome) -> float | None:
        """Return the latency in milliseconds, else the estimated cost."""
        if self.high_ms is not None:
            pace = Pace.of(outcome.evidence.latency, self.high_ms)
            return None if pace is None else pace.latency_ms(self.high_ms)
        if self.problem.graph is not None:
            return self.problem.graph.cost(plan.kept)
        return float(self.problem.cost(plan))


class Pareto:
    """Explores error against latency with Optuna, over groups of layers.

    The guided search runs first; its plan, all high and all low are the first trials. Variables
    are groups of the kept layers, groups of the low layers whose keeping is forecast to lower the
    error most, and all others together. So each of these three plans is one setting of the
    variables. The answer is the fastest plan that passed.

    The emulator has no latency: there the estimated cost of the kept layers stands in, and the
    answer is the smallest plan that passed. With a `storage` URL the study is copied there as it
    grows.
    """

    name: ClassVar[str] = "pareto"
    assumption: ClassVar[str] = (
        "layers of one module matter together; measures error against latency (on the emulator: "
        "the estimated cost of what is kept), needs Optuna"
    )
    minimal: ClassVar[bool] = False
    largest: ClassVar[int | None] = None
    weighs_speed: ClassVar[bool] = True

    def __init__(self, storage: str | None = None) -> None:
        self._storage = storage

    def check(self) -> None:
        """Raise PluginError where Optuna is missing or the storage cannot be opened."""
        load_optuna()
        if self._storage is not None:
            open_storage(self._storage)

    def search(self, problem: Problem) -> Search[Plan]:
        return (yield from unrepeated(self._search(problem)))

    def _search(self, problem: Problem) -> Search[Plan]:
        start = yield from Guided().search(problem)
        high_ms = (yield from all_high_ms(problem)) if problem.builds else None
        groups = yield from _groups(problem, start)
        labels = [label(i, group, problem.names) for i, group in enumerate(groups)]
        scale = _Scale(problem=problem, high_ms=high_ms)
        exploration = _Exploration(scale, groups, Study(labels, problem.seed), start)
        if self._storage is not None:
            name = _study_name(problem, labels)
            exploration.mirror = Mirror(self._storage, name, scale.objectives)
        for seed in (start, Plan.all_high(problem.size), Plan.of(())):
            yield from exploration.begin(seed)
        yield from exploration.explore()
        return exploration.best


class _Exploration:
    """What Optuna has proposed so far, with the outcomes."""

    def __init__(self, scale: _Scale, groups: Sequence[Group], study: Study, start: Plan) -> None:
        self._scale = scale
        self._groups = groups
        self._study = study
        self._known: dict[Plan, Outcome] = {}
        self.best = start
        self.mirror: Mirror | None = None

    def begin(self, plan: Plan) -> Search[None]:
        """Make a plan that the groups can express one of the first trials."""
        reason = "where the exploration begins"
        if self._scale.high_ms is not None:
            self._known[plan] = yield from judge_timed(plan, reason)
        else:
            (self._known[plan],) = yield (Proposal(plan=plan, reason=reason),)
        # All layers of a group are high or low together, so the first one stands for it.
        self._study.enqueue([group[0] in plan.kept for group in self._groups])
        self._end(*self._ask())

    def explore(self) -> Search[None]:
        """Have plans proposed and tried, until there were enough or nothing new comes."""
        seeds, ask_count = len(self._known), 0
        while (
            trials_left := FURTHER_TRIALS + seeds - len(self._known)
        ) > 0 and ask_count < MOST_ASKED:
            wanted = min(self._scale.problem.workers, trials_left)
            # Ask for as many as there are workers before any is told: constant time per batch, and
            # the sampler takes care that they differ.
            waiting = [self._ask() for _ in range(wanted)]
            ask_count += wanted
            # A proposal that repeats a known plan is told its outcome and costs nothing.
            new = list(dict.fromkeys(p for _, p in waiting if p not in self._known))
            if new:
                outcomes = yield tuple(self._proposal(plan) for plan in new)
                self._known.update(zip(new, outcomes, strict=True))
            for trial, plan in waiting:
                self._end(trial, plan)

    def _ask(self) -> "tuple[optuna.Trial, Plan]":
        trial, high = self._study.ask()
        kept = (g for g, is_high in zip(self._groups, high, strict=True) if is_high)
        return trial, Plan.of(layer for group in kept for layer in group)

    def _end(self, trial: "optuna.Trial", plan: Plan) -> None:
        outcome = self._known[plan]
        values = self._scale.values(plan, outcome)
        verdict = "no verdict" if outcome.verdict is None else outcome.verdict.value
        about = {"kept": len(plan), "plan": plan.key, "verdict": verdict}
        ended = self._study.tell(trial, values, about)
        if self.mirror is not None:
            self.mirror.add(ended)
        if outcome.passed and self._rank(plan) < self._rank(self.best):
            self.best = plan

    def _rank(self, plan: Plan) -> tuple[float, Plan]:
        """Return the order of answers: the fastest where plans are timed, then fewest layers."""
        if self._scale.high_ms is None:
            return (0.0, plan)
        slowness = self._scale.slowness(plan, self._known[plan])
        return (math.inf if slowness is None else slowness, plan)

    def _proposal(self, plan: Plan) -> Proposal:
        done = f"{len(self._known) - 3} of {FURTHER_TRIALS} plans"
        return Proposal(
            plan=plan, timed=self._scale.high_ms is not None, reason=f"explore: {done}"
        )


def _groups(problem: Problem, start: Plan) -> Search[list[Group]]:
    """Return groups of the layers that a plan keeps, of borderline ones, and one of all others.

    Borderline are the groups whose keeping is forecast to save the most error for its cost.
    """
    kept = few_groups(start.indices, problem, KEPT_GROUPS)
    low = [layer for layer in range(problem.size) if layer not in start.kept]
    parts = few_groups(low, problem, LOW_GROUPS)
    (now, *outcomes) = yield from emulated_outcomes(
        [start, *(start.with_(part) for part in parts)], "what keeping more would save"
    )
    worth = [
        (_saved(now, outcome) / problem.cost(Plan.of(part)), part)
        for part, outcome in zip(parts, outcomes, strict=True)
    ]
    ranked = [part for _, part in sorted(worth, key=lambda entry: (-entry[0], entry[1]))]
    near, far = ranked[:NEAR_GROUPS], ranked[NEAR_GROUPS:]
    rest = tuple(sorted(layer for part in far for layer in part))
    return [*kept, *sorted(near), *([rest] if rest else [])]


def _saved(now: Outcome, outcome: Outcome) -> float:
    if now.error is None or outcome.error is None or not math.isfinite(now.error):
        return 0.0
    return now.error - outcome.error


def _study_name(problem: Problem, labels: Sequence[str]) -> str:
    """Return a name that is the same for the same search over the same layers."""
    text = repr((tuple(problem.names), problem.tolerance, problem.seed, tuple(labels)))
    return f"precision-bisect {hashlib.sha256(text.encode()).hexdigest()[:8]}"
