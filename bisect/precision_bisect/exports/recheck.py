"""The last check of an answer: its exported files, opened by themselves, in a fresh process.

That is a Python of its own, or a copy of this process from before it opened anything. As a
module, `python -m precision_bisect.exports.recheck FOLDER WORK` is that process: it prints one
line of JSON, `{"samples": 4, "unrun": ""}` or `{"trouble": "…"}`.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import onnx

from precision_bisect.errors import ModelError, PluginError, counted
from precision_bisect.exports.rerun import Expected, Feeds, NotRun, differing, feeds_in, run_file
from precision_bisect.graphs.graph import all_graphs
from precision_bisect.graphs.ort import LacksKernel, open_file, runtime
from precision_bisect.judging.inputs.loops import Loop
from precision_bisect.machine.forked import Fresh, Running, Standby, can_stand_by
from precision_bisect.machine.plain_files import plain_size
from precision_bisect.machine.polygraphy_quiet import quiet, without_torch
from precision_bisect.machine.stopping import STOPS, look_at_clock
from precision_bisect.runs import plain_json
from precision_bisect.runs.results.deployment import ByDefaults, Recheck
from precision_bisect.runs.runfolder import GOLDEN_INPUTS, GOLDEN_OUTPUTS, MIXED_MODEL, RUN_SCRIPT

# Longest text of a foreign error, in characters.
_SHOWN = 300
STORED = Feeds()
"""The samples that are stored beside the model."""


class Unfit(Exception):
    """The files do not fit together; the message says why, in one sentence."""


def fit(folder: Path, feeds: Feeds, work: Path) -> Mapping[str, Any]:
    """Check the exported model and what is stored beside it, and run it.

    Return how many stored samples there are, and why it did not run, "" where it did. Raises
    Unfit.
    """
    path = folder / MIXED_MODEL
    graph = _graph(path)
    stored = _fitting_samples(folder, graph, feeds.loop) if feeds.stored else ()
    unrun = ""
    try:
        run_file(path, feeds, stored if feeds.samples is None else feeds.samples, work)
    except NotRun as reason:
        unrun = str(reason)
    except ModelError as error:
        raise Unfit(f"it does not open: {error.message[:_SHOWN]}") from error
    return {"samples": len(stored), "unrun": unrun[:_SHOWN].rstrip(".")}


def _fitting_samples(
    folder: Path, graph: onnx.GraphProto, loop: Loop
) -> Sequence[Mapping[str, Any]]:
    """Return the stored inputs, which fit the graph, as outputs of one run do. Raises Unfit."""
    inputs, outputs = stored_samples(folder)
    for number, (feed, wanted) in enumerate(zip(inputs, outputs, strict=True)):
        for value, arrays, file in (
            *((value, feed, GOLDEN_INPUTS) for value in graph.input),
            *((value, wanted, GOLDEN_OUTPUTS) for value in graph.output if loop.plain),
        ):
            if trouble := _misfit(value, arrays):
                raise Unfit(f"{value.name!r} in {file}, sample {number}, {trouble}")
    return inputs


def _graph(path: Path) -> onnx.GraphProto:
    """Return inputs, outputs and names of weights of a file that is valid. Raises Unfit."""
    try:
        graph = onnx.load(path, load_external_data=False).graph
        standard = [n for g in all_graphs(graph) for n in g.node if n.domain in ("", "ai.onnx")]
        # The check takes an operator of TensorRT's plugins for a mistake.
        checks = all(onnx.defs.has(node.op_type) for node in standard)
        names = [onnx.TensorProto(name=tensor.name) for tensor in graph.initializer]
        ends = onnx.GraphProto(input=graph.input, output=graph.output, initializer=names)
        # The check reads the file once more: one graph with its weights at a time.
        del graph, standard
    except Exception as error:  # protobuf raises classes of its own
        raise Unfit(f"{path.name} is no valid model: {_line(error)}") from error
    if checks:
        _check(path)
    return ends


def _check(path: Path) -> None:
    """Raise Unfit for a file that both ONNX's check and ONNX Runtime refuse.

    The check is stricter, of ends of an unknown rank and of domains without a version.
    """
    try:
        onnx.checker.check_model(path)
    except Exception as error:  # onnx raises classes of its own
        try:
            open_file(path, threads=1, large=True)
        except LacksKernel:
            pass
        except ModelError:
            raise Unfit(f"{path.name} is no valid model: {_line(error)}") from error


@quiet()
@without_torch()
def stored_samples(
    folder: Path,
) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    """Return the stored inputs and outputs, arrays by name, as Polygraphy reads them.

    Raises Unfit, also where there are none or a sample has only one of both.
    """
    from polygraphy.comparator import RunResults
    from polygraphy.json import load_json

    try:
        for name in (GOLDEN_INPUTS, GOLDEN_OUTPUTS):
            plain_size(folder / name)
        inputs = load_json(str(folder / GOLDEN_INPUTS))
        results = RunResults.load(str(folder / GOLDEN_OUTPUTS))
        (outputs,) = results.values()
        counts = len(inputs), len(outputs)
        values = [value for sample in (*inputs, *outputs) for value in sample.values()]
    except Exception as error:  # Polygraphy raises classes of its own
        raise Unfit(f"Polygraphy cannot read the stored samples: {_line(error)}") from error
    if not all(isinstance(value, np.ndarray) for value in values):
        raise Unfit("a stored sample holds what is no array")
    if counts[0] != counts[1] or not counts[0]:
        raise Unfit(f"{counts[0]} stored inputs and {counts[1]} stored outputs")
    return inputs, outputs


def _misfit(value: onnx.ValueInfoProto, arrays: Mapping[str, Any]) -> str:
    """Return why the array of an input or output is not of its type or shape, "" where it is."""
    if value.name not in arrays:
        return "is missing"
    array, tensor = arrays[value.name], value.type.tensor_type
    expected = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if array.dtype != expected:
        return f"is {array.dtype}, and the model has {expected}"
    if not tensor.HasField("shape"):
        return ""
    # What is not positive is no size but says that it is open.
    sizes = [d.dim_value if d.dim_value > 0 else None for d in tensor.shape.dim]
    fits = len(sizes) == array.ndim and all(
        size in (None, actual) for size, actual in zip(sizes, array.shape, strict=True)
    )
    return "" if fits else f"has the shape {array.shape}, which the model does not take"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:_SHOWN] or type(error).__name__


def main(folder: str, work: str) -> None:
    """Print what was found, as one line of JSON."""
    try:
        outcome = fit(Path(folder), feeds_in(Path(work)), Path(work))
    except Unfit as unfit:
        outcome = {"trouble": str(unfit)}
    sys.stdout.write(json.dumps(outcome) + "\n")


class Check:
    """The check of a run folder's exported files, with `judges` by ONNX Runtime on CUDA, too.

    It begins at once, beside this process; leaving the context ends it. `work` is for files of its
    own, `gpu` what CUDA_VISIBLE_DEVICES says, None to leave that. The model is run on `feeds`, and
    held against what is `expected`, None for a plan that is not within the limits.
    """

    def __init__(
        self,
        folder: Path,
        work: Path,
        *,
        judges: bool,
        gpu: str | None = None,
        feeds: Feeds = STORED,
        expected: Expected | None = None,
    ) -> None:
        self._judges = judges
        self._fitting = partial(_fitting, folder, work, feeds, expected)
        self._held = ExitStack()
        self._begun: _Beside | None = None
        # A system that starts no process costs the check alone.
        with suppress(OSError):
            self._begun = judging(folder / RUN_SCRIPT, work, gpu) if judges else self._fitting()
            self._held.enter_context(self._begun)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def ended(self) -> Recheck:
        """Wait for the verdict; what cannot be checked is an outcome, never an error."""
        if self._begun is None:
            return Recheck(outcome="not_judged", message="the check could not be started")
        recheck = self._begun.ended()
        # What judges the files opens them, too: one process is enough where it has a verdict.
        if not self._judges or recheck.outcome != "not_judged":
            return recheck
        with suppress(OSError):
            opened = self._held.enter_context(self._fitting()).ended()
            recheck = opened if opened.refutes else recheck
        return recheck


# Seconds between two looks at the clock.
_LOOK_S = 0.02


# The copy of this process that waits for a check, if there is one.
_READY = list[Standby]()


@contextmanager
def standing_by() -> Iterator[None]:
    """Have the first check inside the block done by a copy of this process as it is now.

    It has opened no model, as a fresh process, and need not import for a second.
    """
    with ExitStack() as ended:
        if can_stand_by():
            # What the check needs, this process will, too.
            with suppress(PluginError, ImportError, OSError):
                runtime()
                with quiet(), without_torch():
                    import polygraphy.comparator
                    import polygraphy.json  # noqa: F401
                ready = ended.enter_context(closing(Standby(main)))
                _READY.append(ready)
                ended.callback(_forget, ready)
        yield


def _forget(ready: Standby) -> None:
    with suppress(ValueError):  # it was asked
        _READY.remove(ready)


class _Beside:
    """A process that has begun; leaving the context ends it.

    It may take `limit_s` seconds: opening with timed algorithms is slow. `called` is its name.
    `recheck_of` returns what the lines on stdout, or files, say; None if there are none.
    """

    def __init__(
        self,
        process: Running,
        recheck_of: Callable[[Sequence[str]], Recheck | None],
        *,
        called: str,
        limit_s: float,
    ) -> None:
        self._process = process
        self._told, self._called, self._limit_s = recheck_of, called, limit_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()

    def _wait(self) -> None:
        """Wait for it. Raises TimeoutExpired, and Stopped where the run's time is over."""
        ends = time.monotonic() + self._limit_s
        while True:
            look_at_clock()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_LOOK_S)
                return
            if time.monotonic() > ends:
                raise subprocess.TimeoutExpired(self._called, self._limit_s)

    def ended(self) -> Recheck:
        """Wait for the process and return what it says, if the run has the time."""
        try:
            self._wait()
            recheck = self._told(_text(self._process.printed).splitlines())
            if recheck is not None:
                return recheck
            lines = _text(self._process.complained).strip().splitlines()
            why = f"ended: {lines[-1] if lines else f'exit code {self._process.returncode}'}"
        except STOPS as stopped:
            why = f"was broken off: {stopped.message}"
        except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
            why = f"did not run: {' '.join(str(error).split()) or type(error).__name__}"
        return Recheck(outcome="not_judged", message=f"{self._called} {why}")


def _fitting(folder: Path, work: Path, feeds: Feeds, expected: Expected | None) -> _Beside:
    """Ask a fresh process whether the exported files open, fit together, and run."""
    work.mkdir(exist_ok=True)
    feeds.save(work)
    places = str(folder.absolute()), str(work.absolute())
    recheck_of = partial(_fits, folder / MIXED_MODEL, feeds, expected, work)
    return _Beside(_begin_check(places, work), recheck_of, called="the check", limit_s=600.0)


def _begin_check(places: Sequence[str], work: Path) -> Running:
    """Return the copy that stands by, at work; a Python of its own where there is none."""
    if _READY and can_stand_by():
        ready = _READY.pop()
        with suppress(BrokenPipeError):  # hours may have passed, and the system has ended it
            ready.begin(*places)
            return ready
    return Fresh(["-m", __name__, *places], work)


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace")


def _fits(
    path: Path, feeds: Feeds, expected: Expected | None, work: Path, printed: Sequence[str]
) -> Recheck | None:
    if not printed:
        return None
    # The last line: what Python starts with may print others before it.
    report = json.loads(printed[-1])
    if "trouble" in report:
        return Recheck(outcome="broken", message=str(report["trouble"]))
    unrun, stored = str(report["unrun"]), int(report["samples"])
    if expected is not None and (why := differing(path, feeds, expected, work, ran=not unrun)):
        return Recheck(outcome="differs", message=why)
    how = f"is valid, but was not run: {unrun}" if unrun else "opens and runs in a fresh process"
    fits = f", and fits {counted(stored, 'stored sample')}" if stored and not unrun else ""
    return Recheck(
        outcome="not_judged", message=f"{path.name} {how}{fits}; the target has to judge"
    )


def judging(script: Path, work: Path, gpu: str | None = None) -> _Beside:
    """Have a script judge an exported model in a fresh process."""
    out = work / "judged.json"
    out.unlink(missing_ok=True)
    words = [str(script.absolute()), "--library-defaults", "--json", str(out)]
    return _Beside(
        Fresh(words, work, gpu),
        lambda _: from_script(plain_json.read_object(out)) if out.exists() else None,
        called=script.name,
        limit_s=1800.0,
    )


def from_script(report: Mapping[str, Any]) -> Recheck:
    """Return what the script's JSON says. Raises LookupError for one that is none."""
    defaults = report["library_defaults"]
    return Recheck(
        outcome=report["outcome"],
        message=report["message"],
        error=max(report["errors"].values(), default=None),
        library_defaults=None
        if defaults is None
        else ByDefaults(
            outcome=defaults["outcome"],
            error=max(defaults["errors"].values(), default=None),
            options=tuple(defaults["options"]),
        ),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
