"""Optuna, wrapped: a study in memory that proposes, and a copy of it in a storage to look at.

Proposals depend only on the seed and the outcomes, never on what a storage holds. So a resumed
search comes to the same place, and finds its trials in the copy.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from precision_bisect.errors import PluginError

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
