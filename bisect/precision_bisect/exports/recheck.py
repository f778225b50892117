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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Self

from precision_bisect.errors import PluginError, PrecisionBisectError, counted
from precision_bisect.exports.fitting_files import Unfit, fit
from precision_bisect.exports.rerun import (
    Expected,
    Feeds,
    begins,
    differing,
    feeds_in,
    last_step,
    outputs_in,
)
from precision_bisect.graphs.ort import LEVELS, runtime
from precision_bisect.machine.forked import Fresh, Running, Standby, can_stand_by
from precision_bisect.machine.polygraphy_quiet import quiet, without_torch
from precision_bisect.machine.process_ends import how_ended, is_fault, tell_faults
from precision_bisect.machine.stopping import STOPS, look_at_clock
from precision_bisect.runs import plain_json
from precision_bisect.runs.results.deployment import ByDefaults, Doing, Recheck
from precision_bisect.runs.runfolder import MIXED_MODEL, RUN_SCRIPT
from precision_bisect.trial import Verdict

STORED = Feeds()
"""The samples that are stored beside the model."""


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
        self._judges, self._feeds = judges, feeds
        self._fitting = partial(_fitting, folder, work, expected)
        self._held = ExitStack()
        self._begun: _Beside | None = None
        # A system that starts no process costs the check alone.
        with suppress(OSError):
            script = folder / RUN_SCRIPT
            self._begun = judging(script, work, gpu) if judges else self._fitting(feeds)
            self._held.enter_context(self._begun)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def ended(self) -> Recheck:
        """Wait for the verdict; what cannot be checked is an outcome, never an error."""
        if self._begun is None:
            return _NOT_STARTED
        recheck = self._begun.ended()
        if not self._judges:
            return self._less_optimised(recheck)
        # What judges the files opens them, too: one process is enough where it has a verdict.
        if recheck.outcome == "not_judged":
            opened = self._less_optimised(self._fitted(self._feeds))
            if opened.refutes or (opened.crash and not recheck.crash):
                return opened
        return recheck

    def _fitted(self, feeds: Feeds, crashed: Recheck | None = None) -> Recheck:
        """Return what one more process says."""
        try:
            return self._held.enter_context(self._fitting(feeds, crashed)).ended()
        except OSError:
            return _NOT_STARTED

    def _less_optimised(self, recheck: Recheck) -> Recheck:
        """Return the same, but after a fault of ONNX Runtime what less optimisation comes to.

        A file that opens with none is broken, unless the given model may not open, either.
        """
        crash = recheck.crash
        if crash is None or not crash.fault or not crash.level:
            return recheck
        lower = LEVELS[LEVELS.index(crash.level) + 1 :]
        for level in lower:
            again = self._fitted(replace(self._feeds, level=level), recheck)
            if again.outcome == "differs" or (again.crash is not None and again.crash.cure):
                return again
            if again.outcome == "not_judged" and again.crash is None:
                return recheck  # there is no kernel, or no time
        levels = f"with graph_optimization_level {crash.level}{', or a lower one' * bool(lower)}"
        return replace(
            recheck,
            outcome="broken" if self._feeds.known else "not_judged",
            message=f"{recheck.message}, {levels}; try another version of ONNX Runtime",
        )


_NOT_STARTED = Recheck(outcome="not_judged", message="the check could not be started")
_DID: Mapping[Doing, str] = {
    "reads": "read",
    "checks": "checked",
    "opens": "opened",
    "runs": "ran",
    "judges": "judged",
}
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

    It may take `limit_s` seconds: opening with timed algorithms is slow. `called` is its name, and
    `work` the folder where it says what it is at. `recheck_of` returns what the lines on stdout,
    or files, say; None if there are none.
    """

    def __init__(
        self,
        process: Running,
        recheck_of: Callable[[Sequence[str]], Recheck | None],
        work: Path,
        *,
        called: str,
        limit_s: float,
    ) -> None:
        self._process, self._work = process, work
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
            lines = _content(self._process.printed).decode(errors="replace").splitlines()
            recheck = self._told(lines) or self._crashed()
            defaults = recheck.library_defaults
            if defaults is not None and defaults.outcome == "broken":
                recheck = replace(recheck, crash=self._crashed().crash)
            return recheck
        except STOPS as stopped:
            why = f"was broken off: {stopped.message}"
        except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
            why = f"did not run: {' '.join(str(error).split()) or type(error).__name__}"
        return Recheck(outcome="not_judged", message=f"{self._called} {why}")

    def _crashed(self) -> Recheck:
        """Return what is to be said of a process that has ended without an answer."""
        code = self._process.returncode or 0
        step = last_step(self._work)
        ended = how_ended(code, _content(self._process.complained), at=step.level)
        crash = replace(step, ended=ended, fault=is_fault(code))
        where = " on the CPU (a GPU is untested)" if step.level else ""
        did = f"{crash.library} {_DID[crash.doing]} {MIXED_MODEL}{where}"
        return Recheck(outcome="not_judged", message=f"as {did}, its process {ended}", crash=crash)


def _fitting(
    folder: Path,
    work: Path,
    expected: Expected | None,
    feeds: Feeds,
    crashed: Recheck | None = None,
) -> _Beside:
    """Ask a fresh process whether the exported files open, fit together, and run."""
    work.mkdir(exist_ok=True)
    feeds.save(work)
    begins(work, "the check", "reads")
    places = str(folder.absolute()), str(work.absolute())
    recheck_of = partial(_fits, folder / MIXED_MODEL, feeds, expected, work, crashed)
    process = _begin_check(places, work)
    return _Beside(process, recheck_of, work, called="the check", limit_s=600.0)


def _begin_check(places: Sequence[str], work: Path) -> Running:
    """Return the copy that stands by, at work; a Python of its own where there is none."""
    if _READY and can_stand_by():
        ready = _READY.pop()
        with suppress(BrokenPipeError):  # hours may have passed, and the system has ended it
            ready.begin(*places)
            return ready
    return Fresh(["-m", __name__, *places], work)


def _content(stream: IO[bytes]) -> bytes:
    stream.seek(0)
    return stream.read()


def _fits(
    path: Path,
    feeds: Feeds,
    expected: Expected | None,
    work: Path,
    crashed: Recheck | None,
    printed: Sequence[str],
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
    if crashed is not None and not unrun:
        return _cured(crashed, feeds, expected, work)
    how = f"is valid, but was not run: {unrun}" if unrun else "opens and runs in a fresh process"
    fits = f", and fits {counted(stored, 'stored sample')}" if stored and not unrun else ""
    return Recheck(
        outcome="not_judged", message=f"{path.name} {how}{fits}; the target has to judge"
    )


def _cured(crashed: Recheck, feeds: Feeds, expected: Expected | None, work: Path) -> Recheck:
    """Return what is to be said of a file that runs with less optimisation."""
    error, words = None, "runs"
    # A check of the user's may fail.
    with suppress(PrecisionBisectError, OSError, ValueError, LookupError):
        if expected is not None:
            judgement = expected.judged(outputs_in(work))
            error, passed = judgement.error, judgement.verdict is Verdict.PASS
            words = "holds" if passed else "runs, over the limit as the CPU rounds"
            words += "" if error is None else f" ({error:.4g})"
    assert crashed.crash is not None
    return replace(
        crashed,
        # One that does not open with the library's own options is broken, in whatever way.
        outcome="broken" if feeds.by_defaults else "not_judged",
        message=f"{crashed.message}; with graph_optimization_level {feeds.level} it {words}",
        crash=replace(crashed.crash, cure=feeds.level, error=error),
    )


def judging(script: Path, work: Path, gpu: str | None = None) -> _Beside:
    """Have a script judge an exported model in a fresh process."""
    out = work / "judged.json"
    out.unlink(missing_ok=True)
    begins(work, script.name, "judges")
    words = ["-X", "faulthandler", str(script.absolute()), "--library-defaults"]
    return _Beside(
        Fresh([*words, "--json", str(out)], work, gpu),
        lambda _: from_script(plain_json.read_object(out)) if out.exists() else None,
        work,
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
    tell_faults()
    main(*sys.argv[1:])
