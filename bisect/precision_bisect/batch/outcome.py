"""What a job's process came to: its exit code and what its run folder tells.

Python ends with exit code 1 after an exception that nobody caught, too, so a code counts as an
ending only beside a `result.json` that was written meanwhile.
"""

import signal
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from precision_bisect.batch.batch_record import JobRecord, State
from precision_bisect.batch.process import COMMAND
from precision_bisect.errors import ExitCode, RunFolderError, printable
from precision_bisect.results.saved import Saved, read_saved
from precision_bisect.run_folder.runfolder import LEDGER, RESULT

_TAIL = 4096
"""Bytes of a log in which its last line is looked for."""
_SHOWN = 200
_ENDINGS = frozenset(ExitCode) - {ExitCode.USAGE, ExitCode.NOT_OBSERVABLE}


def result_stamp(folder: Path) -> tuple[int, int] | None:
    """Return what changes whenever the result of a run is written; None where there is none."""
    try:
        found = (folder / RESULT).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def spent_s(folder: Path) -> float:
    """Return the seconds that the trials of a run have taken, which count in its --max-time."""
    total = 0.0
    for path in (folder / LEDGER, *folder.glob(f"*/{LEDGER}")):
        if path.is_file():
            total += _trials_s(path)
    return total


def _trials_s(ledger: Path) -> float:
    """Return 0 where the ledger cannot be read: the job itself will say so."""
    try:
        with closing(sqlite3.connect(f"{ledger.absolute().as_uri()}?mode=ro", uri=True)) as opened:
            return float(opened.execute("SELECT total(wall_s) FROM trials").fetchone()[0])
    except (sqlite3.Error, UnicodeDecodeError):
        return 0.0


def outcome(record: JobRecord, code: int, *, fresh: bool, asked: bool) -> JobRecord:
    """Return the record of a job whose process has ended with this exit code.

    `fresh` tells that it has written a result, `asked` that the batch had told it to end.
    """
    saved = _saved(Path(record.run_folder)) if fresh else None
    said = replace(record, exit_code=code, message="")
    if saved is not None:
        result = saved.result
        said = replace(
            said,
            kept=len(result.kept) if saved.answered else None,
            candidates=result.candidates,
            error=result.error,
            tolerance=result.tolerance,
            trials=result.trials,
        )
        if code in _ENDINGS:
            return replace(said, status=result.status)
    if code == ExitCode.INTERRUPTED or (asked and code < 0):
        return replace(said, status=State.INTERRUPTED, exit_code=ExitCode.INTERRUPTED)
    last = _last_line(Path(record.log))
    if code == ExitCode.USAGE:
        return replace(said, status=State.FAILED, message=last)
    if code < 0:
        return replace(said, status=State.CRASHED, message=f"killed by {_signal(-code)}")
    how = "" if code == ExitCode.INTERNAL else f"ended with exit code {code}: "
    return replace(said, status=State.CRASHED, message=f"{how}{last}")


def _saved(folder: Path) -> Saved | None:
    try:
        return read_saved(folder)
    except RunFolderError:
        return None


def _signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name}, as where memory runs out" if name == "SIGKILL" else name


def _last_line(log: Path) -> str:
    """Return the last line of a log, without the name that the command puts before errors."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _TAIL))
            lines = stream.read().decode(errors="replace").split("\n")
    except OSError as error:
        return f"its log cannot be read: {error.strerror}"
    last = next((line for line in reversed(lines) if line.strip()), "")
    if last.startswith(COMMAND):
        return "it said nothing"
    return printable(last.strip().removeprefix("precision-bisect: "))[:_SHOWN]
