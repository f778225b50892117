"""The last check of an answer: its exported files, opened by themselves, in a fresh process."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from precision_bisect.exports import fitting
from precision_bisect.results.deployment import ByDefaults, Recheck
from precision_bisect.run_folder import plain_json
from precision_bisect.run_folder.runfolder import MIXED_MODEL, RUN_SCRIPT

_FIT_S = 600.0
_JUDGE_S = 1800.0
"""So many seconds the processes may take; opening with timed algorithms is slow."""


def recheck(folder: Path, work: Path, *, judges: bool, gpu: str | None = None) -> Recheck:
    """Check the exported files of a run folder, and with `judges` by ONNX Runtime on CUDA, too.

    `work` is for a file of its own, `gpu` what CUDA_VISIBLE_DEVICES says, None to leave that. What
    cannot be checked is an outcome, never an error; so is Ctrl-C, for the answer stands.
    """
    try:
        return _rechecked(folder, work, judges, gpu)
    except KeyboardInterrupt:
        return Recheck(outcome="not_judged", message="interrupted")


def _rechecked(folder: Path, work: Path, judges: bool, gpu: str | None) -> Recheck:
    # What judges the files opens them, too: one process is enough where it has a verdict.
    found = judged(folder / RUN_SCRIPT, work, gpu) if judges else None
    if found is not None and found.outcome != "not_judged":
        return found
    module = ["-m", fitting.__name__, str(folder.absolute())]
    try:
        done = _python(module, _FIT_S)
        # The last line: what Python starts with may print others before it.
        told = json.loads((done.stdout.splitlines() or [""])[-1])
        if "trouble" in told:
            return Recheck(outcome="broken", message=str(told["trouble"]))
        samples = int(told["samples"])
    except (OSError, subprocess.SubprocessError, ValueError, LookupError) as error:
        return Recheck(outcome="not_judged", message=f"the check did not run: {_line(error)}")
    if found is not None:
        return found
    return Recheck(
        outcome="not_judged",
        message=f"{MIXED_MODEL} is valid in a fresh process, and {samples} stored samples fit it; "
        "the target has to judge",
    )


def judged(script: Path, work: Path, gpu: str | None = None) -> Recheck:
    """Return what a script that judges an exported model says of it, in a fresh process."""
    out = work / "judged.json"
    out.unlink(missing_ok=True)
    words = [str(script.absolute()), "--library-defaults", "--json", str(out)]
    try:
        done = _python(words, _JUDGE_S, gpu)
        if not out.exists():
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            return Recheck(outcome="not_judged", message=f"{script.name} ended: {said[-1]}")
        return from_script(plain_json.read_object(out))
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
        return Recheck(outcome="not_judged", message=f"{script.name} did not run: {_line(error)}")


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


def _python(
    arguments: Sequence[str], limit_s: float, gpu: str | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run this Python; -P: not to import what lies in the folder that it is started in."""
    own = dict(os.environ)
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        env=own if gpu is None else {**own, "CUDA_VISIBLE_DEVICES": gpu},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit_s,
    )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
