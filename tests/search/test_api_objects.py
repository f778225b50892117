"""Functions and classes of the caller in the place of names, in the Python API."""

import itertools
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precision_bisect
from models import OVERFLOW, parse, save
from precision_bisect.api import FindOptions, errors_in_python
from precision_bisect.errors import UsageError
from precision_bisect.options import Options
from precision_bisect.plan import Plan
from precision_bisect.plugins import STRATEGIES, load
from precision_bisect.protocols import Judgement, Problem, Sample
from precision_bisect.runs.monitoring.events import Event, TrialFinished
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.runfolder import RESULT
from precision_bisect.trial import Proposal, Verdict

SAMPLE = {"x": np.array([300.0], np.float32)}


class Largest:
    """The largest difference, as a metric's class makes it from the options."""

    def __init__(self, options: Options, outputs: Sequence[str], classes: Collection[str]) -> None:
        assert (["y"], set()) == (list(outputs), set(classes))
        assert isinstance(options.tol, float)
        self.tolerance = options.tol

    def settings(self) -> dict[str, Any]:
        """Tell the limit."""
        return {"metric": "largest", "tolerance": self.tolerance}

    def judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        """Judge all samples."""
        error = largest(outputs, reference)
        verdict = Verdict.PASS if error <= self.tolerance else Verdict.FAIL
        return Judgement(verdict=verdict, error=error)


def largest(outputs: Sequence[Sample], reference: Sequence[Sample]) -> float:
    """Return the largest difference."""
    pairs = zip(outputs, reference, strict=True)
    return float(max(np.abs(found["y"] - wanted["y"]).max() for found, wanted in pairs))


OBJECTS: dict[str, tuple[FindOptions, FindOptions]] = {
    "check": ({"check": largest}, {"metric": "max"}),
    "lambda": ({"check": lambda found, wanted: largest(found, wanted)}, {"metric": "max"}),
    "partial": ({"check": partial(largest)}, {"metric": "max"}),
    "metric": ({"metric": Largest}, {"metric": "max"}),
    "strategy": ({"strategy": load(STRATEGIES, "ddmin")}, {"strategy": "ddmin"}),
}
"""Objects, and names that mean the same."""


@pytest.mark.parametrize("which", OBJECTS)
def test_an_object_is_what_a_name_is(which: str, tmp_path: Path) -> None:
    """A function, a class or whatever can be called does what is installed under a name."""
    model, (given, named) = save(parse(OVERFLOW), tmp_path), OBJECTS[which]
    sample: Sample = {"x": np.array([299.0], np.float32)}
    found = [
        precision_bisect.find(model, inputs=sample, tol=0.2, out=tmp_path / str(n), **options)
        for n, options in enumerate((given, named))
    ]
    (first, second) = (
        (each.kept, each.status, each.tolerance, each.evaluations) for each in found
    )
    assert first == second
    assert found[0].kept
    said = precision_bisect.load(tmp_path / "0").to_text()
    assert " at 0x" not in said


@pytest.mark.parametrize("which", OBJECTS)
def test_an_object_stays_in_its_process(which: str, tmp_path: Path) -> None:
    """Other processes have no such judge, and need no strategy; no run goes on with either."""
    model, (given, _) = save(parse(OVERFLOW), tmp_path), OBJECTS[which]
    options: Any = {"inputs": SAMPLE, "tol": 0.2, "out": tmp_path / "run", **given}
    if which == "strategy":
        assert precision_bisect.find(model, **options, isolate="always").kept
    else:
        with pytest.raises(precision_bisect.PrecisionBisectError, match="other processes"):
            precision_bisect.find(model, **options, isolate="always")
    with pytest.raises(precision_bisect.PrecisionBisectError, match="is the same again"):
        precision_bisect.find(model, **options, resume=True)


def fails(*_: object, **__: object) -> float:
    """Raise what nobody expects."""
    raise LookupError("an odd error")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"check": fails},
            "failed: an odd error (LookupError in test_api_objects.py, line ",
        ),
        ({"check": lambda found, wanted: "text"}, "returned str, which is no float"),
        ({"check": 3}, "check cannot be 3; give a name, or a function or class"),
        ({"metric": fails}, f"the metric {__name__}.fails cannot be made: LookupError"),
        ({"metric": largest}, f"the metric {__name__}.largest cannot be made: TypeError"),
        ({"metric": lambda *_: 3}, "lacks tolerance, settings, judge"),
        ({"strategy": fails}, f"the strategy {__name__}.fails cannot be made: LookupError"),
        ({"strategy": Result}, "cannot be made: TypeError"),
        ({"strategy": int}, "the strategy builtins.int lacks name, assumption, minimal, largest"),
        ({"strategy": None}, "strategy cannot be None; give a name, or a function or class"),
    ],
)
def test_objects_that_do_not_fit_are_errors_of_ours(
    options: Any, said: str, tmp_path: Path
) -> None:
    """Whatever an object raises or makes ends in one line that names it."""
    model = save(parse(OVERFLOW), tmp_path)
    with pytest.raises(precision_bisect.PrecisionBisectError) as refusal:
        precision_bisect.find(model, inputs=SAMPLE, tol=0.2, out=tmp_path / "run", **options)
    assert said in str(refusal.value)
    assert refusal.value.hint


class Searching:
    """What a strategy must have, but a search."""

    name, assumption, minimal, largest = "odd", "none", False, None


class Junk(Searching):
    """Yields what is no proposal."""

    def search(self, problem: object) -> Any:
        """Ask for a number."""
        yield 3


class Nothing(Searching):
    """Has no search at all."""

    def search(self, problem: object) -> Any:
        """Return what is no generator."""


class Planless(Searching):
    """Ends without a plan."""

    def search(self, problem: object) -> Any:
        """Yield nothing."""
        yield ()


class Stops(Searching):
    """Ends as a generator would."""

    def search(self, problem: object) -> Any:
        """Raise what ends generators."""
        raise StopIteration
        yield ()


class Deaf(Searching):
    """Asks on and on, whatever it is told."""

    def search(self, problem: Problem) -> Any:
        """Catch all that is raised."""
        for mask in itertools.cycle(range(2**problem.size)):
            with suppress(Exception):
                yield (Proposal(plan=Plan(mask)),)


class Quits(Searching):
    """Ends without a plan once it is ended."""

    def search(self, problem: Problem) -> Any:
        """Ask until something is raised."""
        with suppress(Exception):
            for mask in itertools.count(1):
                yield (Proposal(plan=Plan(mask % 2**problem.size)),)


def yielding(*asked: object, **members: object) -> type:
    """Return a strategy that asks for these plans, and ends with the first of them."""

    def search(self: object, problem: object) -> Any:
        yield tuple(Proposal(plan=plan) for plan in asked)  # type: ignore[arg-type]
        return asked[0]

    return type("Yielding", (Searching,), {"search": search, **members})


class WordlessError(Exception):
    """Fails even when it is asked what it says."""

    def __str__(self) -> str:
        raise LookupError("no words")


def raises(error: BaseException) -> Any:
    """Return a function of anything that raises this."""

    def fail(*_: object) -> None:
        raise error

    return fail


class Nameless(Searching):
    """Fails where it is asked for its name."""

    name = property(raises(LookupError()))


class Shapeless:
    """Fails where it is asked whether it is an array."""

    shape = property(raises(LookupError()))


class Arrayless:
    """Fails where an array is made of it."""

    __array__ = raises(SystemExit(3))


class Untold(Largest):
    """A metric whose settings are none."""

    settings = raises(WordlessError())


class Unjudged(Largest):
    """A metric that ends the process."""

    judge = raises(SystemExit(3))


class Closed(Largest):
    """A metric that seems to end a generator."""

    judge = raises(GeneratorExit())


class Numbers(Largest):
    """A metric that judges by a number."""

    def judge(self, outputs: object, reference: object) -> Any:
        """Return no judgement."""
        return 3


def samples() -> Iterator[Sample]:
    """Yield one sample, and fail."""
    yield SAMPLE
    raise LookupError("no more")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"strategy": Junk}, "the strategy odd yields no tuple of proposals"),
        ({"strategy": Nothing}, "the strategy odd failed: TypeError"),
        ({"strategy": Planless}, "the strategy odd ended with no plan"),
        ({"strategy": Stops}, "the strategy odd failed: RuntimeError"),
        ({"strategy": raises(SystemExit(3))}, "cannot be made: SystemExit: 3"),
        ({"strategy": Nameless}, "Nameless cannot be made: LookupError"),
        ({"strategy": yielding(None)}, "odd proposes no plan of the layers"),
        ({"strategy": yielding(Plan.of([99]))}, "odd proposes no plan of the layers"),
        ({"strategy": yielding(Plan(-1))}, "odd proposes no plan of the layers"),
        ({"strategy": yielding(largest="x")}, "Yielding has no number as largest"),
        ({"observer": raises(StopIteration())}, "the observer failed: StopIteration"),
        ({"observer": raises(GeneratorExit())}, "the observer failed: GeneratorExit"),
        ({"observer": raises(SystemExit(3))}, "the observer failed: SystemExit: 3"),
        ({"observer": raises(WordlessError())}, "the observer failed: WordlessError"),
        ({"metric": Untold}, "Untold failed: WordlessError"),
        ({"metric": Unjudged}, "Unjudged failed: 3"),
        ({"metric": Closed}, "Closed failed: GeneratorExit"),
        ({"metric": Numbers}, "Numbers failed: it returned int, which is no Judgement"),
        ({"inputs": map(raises(SystemExit(3)), "x")}, "inputs failed: SystemExit: 3"),
        ({"inputs": [Shapeless()]}, "inputs failed: LookupError"),
        ({"inputs": Shapeless()}, "inputs failed: LookupError"),
        ({"inputs": {"x": Arrayless()}}, "inputs failed: SystemExit: 3"),
        ({"strategy": raises(MemoryError())}, "cannot be made: MemoryError"),
        ({"out": "a" * 5000}, "File name too long; choose another path"),
        ({"ladder": [None, "fp16"]}, "None is no type"),
        ({"inputs": samples()}, "inputs failed: LookupError: no more"),
        ({"out": "a\0b"}, "give a path"),
        ({"max_time": "10x"}, "write 90, 90s, 15m or 8h"),
        ({"max_time": "10m", "max_time_s": 3.0}, "max_time and max_time_s are one"),
    ],
)
def test_whatever_is_called_its_errors_are_ours(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """With a hint, and with the exception itself as the cause."""
    model = save(parse(OVERFLOW), tmp_path)
    with pytest.raises(precision_bisect.PrecisionBisectError) as caught:
        given = {"inputs": SAMPLE, "tol": 0.2, "out": tmp_path / "run", **options}
        precision_bisect.find(model, **given)
    assert said in str(caught.value) and caught.value.hint


def test_an_error_of_the_system_without_a_file_names_none() -> None:
    """As where no further process, or pipe, may be opened."""
    with pytest.raises(UsageError, match=r"nothing left; .*resume"), errors_in_python():
        raise OSError("nothing left")


@pytest.mark.parametrize(
    "inputs", [itertools.repeat(SAMPLE), map(time.sleep, [600])], ids=["many", "slow"]
)
def test_samples_without_end_end_with_the_time(inputs: Any, tmp_path: Path) -> None:
    """A generator of the caller's, too; the run has its result."""
    model = save(parse(OVERFLOW), tmp_path)
    result = precision_bisect.find(
        model, inputs=inputs, tol=0.2, out=tmp_path / "run", max_time_s=1.0
    )
    assert Status.BUDGET_EXHAUSTED is result.status
    assert (tmp_path / "run" / RESULT).exists()


@pytest.mark.parametrize(
    ("strategy", "limit"), [(Deaf, {}), (Deaf, {"max_trials": 3}), (Quits, {"max_trials": 3})]
)
def test_a_strategy_that_goes_on_past_the_end_is_ended(
    strategy: type, limit: dict[str, Any], tmp_path: Path
) -> None:
    """It is told once that there is nothing more; the run has its result."""
    model = save(parse(OVERFLOW), tmp_path)
    result = precision_bisect.find(
        model, inputs=SAMPLE, tol=0.2, out=tmp_path / "run", strategy=strategy, **limit
    )
    assert Status.BUDGET_EXHAUSTED is result.status


def test_paths_with_a_null_character_are_refused() -> None:
    """Wherever one is given."""
    for field in ("plugins", "ort_custom_ops"):
        with pytest.raises(precision_bisect.PrecisionBisectError, match="cannot read"):
            precision_bisect.EngineSettings(**{field: (Path("a\0b"),)})  # type: ignore[arg-type]
    for path in ("a\0b", None):
        with pytest.raises(precision_bisect.PrecisionBisectError, match="give a path"):
            precision_bisect.layers(path)  # type: ignore[arg-type]


def test_a_bare_array_and_texts_of_units(tmp_path: Path) -> None:
    """One input needs no name, and a time is written as the flag's."""
    model = save(parse(OVERFLOW), tmp_path)
    results = [
        precision_bisect.find(
            model, inputs=inputs, tol=0.2, out=tmp_path / "run", overwrite=True, max_time="10m"
        )
        for inputs in (SAMPLE["x"], [SAMPLE["x"]], iter([SAMPLE["x"]]))
    ]
    assert all(result.kept for result in results)
    result = results[-1]
    picture = tmp_path / "curve.svg"
    result.plot().save(picture)
    for path in ("curve.png", None, "no/such/curve.svg"):
        with pytest.raises(precision_bisect.PrecisionBisectError):
            result.plot().save(path)  # type: ignore[arg-type]
    assert picture.read_text().startswith("<svg") and "save" in repr(result.plot())


def test_an_interrupt_is_raised_with_what_was_found(tmp_path: Path) -> None:
    """A cell that is interrupted ends the cells behind it, too; the run folder stands."""

    def interrupt(event: Event) -> None:
        if isinstance(event, TrialFinished):
            raise KeyboardInterrupt

    model = save(parse(OVERFLOW), tmp_path)
    with pytest.raises(KeyboardInterrupt) as caught:
        precision_bisect.find(
            model, inputs=SAMPLE, tol=0.2, out=tmp_path / "run", observer=interrupt
        )
    assert isinstance(caught.value, precision_bisect.SearchInterrupted)
    assert isinstance(caught.value.result, Result)
    assert "interrupted" == caught.value.result.status
    assert "interrupted" == precision_bisect.load(tmp_path / "run").status
