"""The last check of an answer: its exported files, opened by themselves, in a fresh process."""

import json
import os
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from precision_bisect.errors import counted
from precision_bisect.exports import fitting
from precision_bisect.runs import plain_json
from precision_bisect.runs.results.deployment import ByDefaults, Recheck
from precision_bisect.runs.runfolder import MIXED_MODEL, RUN_SCRIPT


class Check:
    """The check of a run folder's exported files, with `judges` by ONNX Runtime on CUDA, too.

    It begins at once, beside this process; leaving the context ends it. `work` is for files of its
    own, `gpu` what CUDA_VISIBLE_DEVICES says, None to leave that.
    """

    def __init__(self, folder: Path, work: Path, *, judges: bool, gpu: str | None = None) -> None:
        self._folder, self._work, self._judges = folder, work, judges
        self._held = ExitStack()
        self._begun: Judging | Fitting | None = None
        # A system that starts no process costs the check alone.
        with suppress(OSError):
            self._begun = (
                Judging(folder / RUN_SCRIPT, work, gpu) if judges else Fitting(folder, work)
            )
            self._held.enter_context(self._begun)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def ended(self) -> Recheck:
        """Wait for the verdict; what cannot be checked is an outcome, never an error.

        So is Ctrl-C, for the answer stands.
        """
        if self._begun is None:
            return Recheck(outcome="not_judged", message="the check could not be started")
        try:
            found = self._begun.ended()
            # What judges the files opens them, too: one process is enough where it has a verdict.
            if not self._judges or found.outcome != "not_judged":
                return found
            with suppress(OSError):
                opened = self._held.enter_context(Fitting(self._folder, self._work)).ended()
                found = opened if opened.outcome == "broken" else found
            return found
        except KeyboardInterrupt:
            return Recheck(outcome="not_judged", message="interrupted")


class _Beside(ABC):
    """A process of this Python that begins at once; leaving the context ends it.

    It may take `limit_s` seconds: opening with timed algorithms is slow. `called` is its name.
    """

    limit_s: float
    called: str

    def __init__(self, words: Sequence[str], work: Path, gpu: str | None = None) -> None:
        own = dict(os.environ)
        self._held = ExitStack()
        text = partial(tempfile.TemporaryFile, "w+", dir=work, errors="replace")
        self._printed, self._said = (self._held.enter_context(text()) for _ in range(2))
        self._process = subprocess.Popen(
            # -P: not to import what lies in the folder that it is started in.
            [sys.executable, "-P", *words],
            env=own if gpu is None else {**own, "CUDA_VISIBLE_DEVICES": gpu},
            stdin=subprocess.DEVNULL,
            stdout=self._printed,
            stderr=self._said,
            # Ctrl-C ends what is explained meanwhile, not the check.
            process_group=0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._held.close()

    def ended(self) -> Recheck:
        """Wait for the process and return what it says."""
        try:
            self._process.wait(self.limit_s)
            for each in (self._printed, self._said):
                each.seek(0)
            found = self._told(self._printed.read().splitlines())
            if found is not None:
                return found
            said = self._said.read().strip().splitlines()
            why = f"ended: {said[-1] if said else f'exit code {self._process.returncode}'}"
        except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
            why = f"did not run: {' '.join(str(error).split()) or type(error).__name__}"
        return Recheck(outcome="not_judged", message=f"{self.called} {why}")

    @abstractmethod
    def _told(self, printed: Sequence[str]) -> Recheck | None:
        """Return what the lines on stdout, or files, say; None if there are none."""


class Fitting(_Beside):
    """Whether a fresh process can open the exported files, and the stored samples fit."""

    limit_s, called = 600.0, "the check"

    def __init__(self, folder: Path, work: Path) -> None:
        super().__init__(["-m", fitting.__name__, str(folder.absolute())], work)

    def _told(self, printed: Sequence[str]) -> Recheck | None:
        if not printed:
            return None
        # The last line: what Python starts with may print others before it.
        told = json.loads(printed[-1])
        if "trouble" in told:
            return Recheck(outcome="broken", message=str(told["trouble"]))
        return Recheck(
            outcome="not_judged",
            message=f"{MIXED_MODEL} is valid in a fresh process, and fits "
            f"{counted(int(told['samples']), 'stored sample')}; the target has to judge",
        )


class Judging(_Beside):
    """A script that judges an exported model in a fresh process."""

    limit_s = 1800.0

    def __init__(self, script: Path, work: Path, gpu: str | None = None) -> None:
        self.called, self._out = script.name, work / "judged.json"
        self._out.unlink(missing_ok=True)
        words = [str(script.absolute()), "--library-defaults", "--json", str(self._out)]
        super().__init__(words, work, gpu)

    def _told(self, printed: Sequence[str]) -> Recheck | None:
        del printed
        return from_script(plain_json.read_object(self._out)) if self._out.exists() else None


def from_script(told: Mapping[str, Any]) -> Recheck:
    """Return what the script's JSON says. Raises LookupError for one that is none."""
    defaults = told["library_defaults"]
    return Recheck(
        outcome=told["outcome"],
        message=told["message"],
        error=max(told["errors"].values(), default=None),
        library_defaults=None
        if defaults is None
        else ByDefaults(
            outcome=defaults["outcome"],
            error=max(defaults["errors"].values(), default=None),
            options=tuple(defaults["options"]),
        ),
    )
