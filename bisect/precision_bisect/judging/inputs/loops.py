"""How the samples of a run are run: once, in a closed loop by flags, or by the user's function."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from precision_bisect.errors import StepFailed, UsageError
from precision_bisect.graphs.fp32_outputs import non_finite
from precision_bisect.judging.inputs.closed_loop import Link, joined, looped
from precision_bisect.judging.inputs.copies import FACTORS
from precision_bisect.machine.user_scripts import (
    ScriptFailed,
    load_function,
    running_script,
    script_copy,
)
from precision_bisect.protocols import Run, Sample, dropping

# Kinds of numpy's types that may stand for each.
_ALIKE = {"f": "f", "i": "iu", "u": "iu", "b": "b"}
LOOKED_AT = 32
"""Feeds of steps that calibrate, and that ranges and causes are found by. A bound."""


class CannotFeed(StepFailed):
    """What a step gives does not fit into the next one: its shape depends on values."""


class CallFailed(StepFailed):
    """What a function gives to `run` does not run."""

    hint = "check what the function gives to run(inputs)"


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Runs a sample for so many steps; a single one is a plain run.

    What is judged are the outputs of the last step, or of `each`. NaN and Inf in a step end the
    loop with that step's outputs: an ArgMax, say, would hide them.
    """

    steps: int = 1
    links: Sequence[Link] = ()
    each: bool = False

    @property
    def plain(self) -> bool:
        """Whether a sample is one inference."""
        return self.steps == 1

    @property
    def runs(self) -> int:
        """The inferences of a sample."""
        return self.steps

    @property
    def sendable(self) -> bool:
        """Whether other processes can run it."""
        return True

    def settings(self) -> Mapping[str, Any]:
        """Return what decides a verdict, as JSON-able values."""
        links = [[link.output, link.input, link.how, link.axis] for link in self.links]
        return {"steps": self.steps, "feeds": links, "each_step": self.each}

    def __call__(self, run: Run, feed: Sample) -> Sample:
        """Return the outputs to judge, by name. Raises CannotFeed, and what `run` raises."""
        if self.plain:
            return run(feed)
        results: list[Sample] = []
        for outputs in self.each_of(run, feed):
            if _broken(outputs):
                return outputs
            results = [*results, outputs] if self.each else [outputs]
        return joined(results) if self.each else results[0]

    def each_of(self, run: Run, feed: Sample) -> Iterator[Sample]:
        """Yield the outputs of each step. Raises CannotFeed, and what `run` raises."""
        try:
            yield from looped(_counted(run, "step", "the loop"), feed, self.steps, self.links)
        except ValueError as error:  # of numpy
            raise CannotFeed(f"an output cannot be fed: {error}") from error


class FunctionLoop:
    """Runs a sample by `function(run, inputs)`, which returns the outputs to judge, by name.

    NaN and Inf of a step are its result, as in a `ClosedLoop`.
    """

    plain = False
    runs = 1
    sendable = False
    _path: Path | None = None

    def __init__(
        self, function: Callable[..., Any], name: str, outputs: Mapping[str, str | None]
    ) -> None:
        """Take the function, how messages call it, and the types of the model's outputs."""
        self._function, self.called, self._outputs = function, name, dict(outputs)
        self._settings: dict[str, Any] = {"loop": name}

    def __reduce__(self) -> tuple[Any, ...]:
        raise UsageError(
            f"trials run in other processes, which do not have the function {self.called} of "
            "--loop",
            "keep them in this one with --isolate never, or give it by name",
        )

    def settings(self) -> Mapping[str, Any]:
        """Return the function, of a script its hash."""
        return self._settings

    def __call__(self, run: Run, feed: Sample) -> Sample:
        """Return what the function returns.

        Raises what `run` raises, and UsageError where the function fails, never calls `run`, or
        returns no dict of the model's outputs.
        """
        inside = {name: array for name, array in feed.items() if name == FACTORS}
        steps = _Steps(_counted(run, "call", f"run in {self.called}", CallFailed), inside)
        # Factors of copies are for the session, not for the user's function.
        inputs = {name: array.copy() for name, array in feed.items() if name != FACTORS}
        try:
            with running_script(self._path):
                returned = self._function(steps, inputs)
        except ScriptFailed as failed:
            if steps.broken is not None:
                return steps.broken
            # The function may have caught what the engine raised.
            if steps.error is not None:
                raise steps.error from failed
            raise UsageError(f"{self.called} failed: {failed}", "run it on its own") from failed
        if steps.broken is not None:
            return steps.broken
        if steps.error is not None:
            raise steps.error
        if not isinstance(returned, Mapping) or {*returned} != {*self._outputs}:
            had = ", ".join(map(str, returned)) if isinstance(returned, Mapping) else ""
            raise UsageError(
                f"{self.called} returned {had or type(returned).__name__}, and not the outputs "
                f"{', '.join(self._outputs)}",
                "return a dict with an array for each output of the model",
            )
        if not steps.calls:
            raise UsageError(f"{self.called} never calls run", "call run(inputs) for each step")
        return {name: self._array(name, returned[name]) for name in self._outputs}

    def _array(self, name: str, value: Any) -> NDArray[Any]:
        """Return an output as an array. Raises UsageError for what the model cannot give."""
        try:
            array = np.asarray(value)
        except ValueError:  # lists of unlike lengths
            array = np.asarray(None)
        dtype = self._outputs[name]
        if dtype and array.dtype.kind not in _ALIKE.get(np.dtype(dtype).kind, array.dtype.kind):
            raise UsageError(
                f"{self.called} returned {array.dtype.name} for {name!r}, and the model gives "
                f"{dtype}",
                "return arrays of the types that run(inputs) gives",
            )
        return array

    def each_of(self, run: Run, feed: Sample) -> Iterator[Sample]:
        """Yield the outputs of each inference, after all of them."""
        return (outputs for _, outputs in recorded(self, run, feed))


class ScriptLoop(FunctionLoop):
    """Runs a sample by a function of the user's script."""

    sendable = True

    def __init__(self, path: Path, name: str, outputs: Mapping[str, str | None]) -> None:
        super().__init__(load_function(path, name), f"{path.name}:{name}", outputs)
        self._path = self.path = path.absolute()
        self.name, self._source = name, path.read_bytes()
        digest = hashlib.sha256(self._source).hexdigest()
        self._settings = {"loop": self.called, "script": digest}

    def __reduce__(self) -> tuple[Any, ...]:
        """Other processes load the script themselves: its functions cannot be sent."""
        return _again, (self.path, self._source, self.name, self._outputs)


Loop: TypeAlias = ClosedLoop | FunctionLoop
PLAIN = ClosedLoop()
"""One inference a sample."""


def _again(path: Path, source: bytes, name: str, outputs: Mapping[str, str | None]) -> ScriptLoop:
    return ScriptLoop(script_copy(path, source, "loop"), name, outputs)


class _Steps:
    """The `run` that a function gets: it remembers the first step that broke, and ends there."""

    def __init__(self, run: Run, inside: Sample) -> None:
        self._run, self._inside = run, inside
        self.calls = 0
        self.broken: Sample | None = None
        self.error: BaseException | None = None

    def __call__(self, inputs: Sample) -> Sample:
        if not isinstance(inputs, Mapping):
            raise TypeError("run takes a dict with an array for each input")
        self.calls += 1
        if self.error is not None:
            raise self.error
        try:
            outputs = self._run({**inputs, **self._inside})
        except BaseException as error:  # whatever a backend raises, no function may catch it
            self.error = error
            raise
        if _broken(outputs):
            self.broken = outputs
            self.error = FloatingPointError("a step gives NaN or Inf")
            raise self.error
        return dict(outputs)


def _broken(outputs: Sample) -> bool:
    return bool(non_finite([outputs]) or dropping([outputs]))


def _counted(run: Run, what: str, of: str, failed: type[StepFailed] | None = None) -> Run:
    """Return the run, whose errors say in which step they are.

    They are `failed`; without it the first one's are of what the sample holds.
    """
    step = 0

    def counting(feed: Sample) -> Sample:
        nonlocal step
        step += 1
        try:
            return run(feed)
        except RuntimeError as error:
            kind = failed or (StepFailed if step > 1 else RuntimeError)
            raise kind(f"in {what} {step} of {of}: {error}") from error

    return counting


def recorded(loop: Loop, run: Run, sample: Sample) -> Sequence[tuple[Sample, Sample]]:
    """Return the feed and the outputs of each inference of a sample."""
    pairs: list[tuple[Sample, Sample]] = []

    def recording(feed: Sample) -> Sample:
        outputs = run(feed)
        pairs.append((feed, outputs))
        return outputs

    loop(recording, sample)
    return pairs


def feeds_of(
    loop: Loop,
    run: Run,
    choosing: Sequence[Sample],
    every: Sequence[Sample],
    most: int = LOOKED_AT,
) -> list[Sample]:
    """Return what steps of a loop are fed, about so many, first and last ones of each sample.

    These are of the samples that choose, and of the largest of `every` sample, by which engines
    know how far inputs grow. Raises what the loop raises.
    """
    size = max(map(_size, choosing))
    larger = (sample for sample in every if _size(sample) > size)
    samples = [*choosing, *sorted(larger, key=_size)[-1:]]
    chosen: list[Sample] = []
    for sample in samples:
        feeds = [feed for feed, _ in recorded(loop, run, sample)]
        count = min(len(feeds), max(2, most // len(samples)))
        places = np.linspace(0, len(feeds) - 1, count).round().astype(int)
        chosen += [feeds[place] for place in places]
    return chosen


def _size(sample: Sample) -> int:
    return sum(array.size for array in sample.values())
