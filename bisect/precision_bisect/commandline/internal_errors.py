"""What commands say on standard error, whole lines; of our own errors where the traceback is."""

import errno
import os
import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from precision_bisect.errors import (
    InternalError,
    PrecisionBisectError,
    UsageError,
    printable,
    ran_out,
    shortened,
)
from precision_bisect.machine.user_scripts import first_line
from precision_bisect.runs.belonging import is_run, new_log
from precision_bisect.runs.runfolder import LOGS


def complain(line: str) -> None:
    """Write a line that says who speaks."""
    tell(f"precision-bisect: {line}")


def tell(line: str) -> None:
    """Write a line as it is; a stream that is gone is no error."""
    with suppress(OSError, RuntimeError):  # a signal came while a line was being written
        sys.stderr.write(f"{printable(line)}\n")


# What is wrong with the path itself, whatever is done with it.
_UNUSABLE = (errno.ENAMETOOLONG, errno.ELOOP)


@contextmanager
def internal_errors(run: Path | None = None) -> Iterator[None]:
    """Have what nobody expects become an InternalError, its traceback in the logs of the run.

    Where there is no run, or no room, the traceback is a temporary file. What cannot be printed is
    no error of this package, and passes. A path that no system takes is a UsageError, as is
    what has run out: memory, open files, processes.
    """
    try:
        yield
    except (PrecisionBisectError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        if lack := ran_out(error):
            raise lack from error
        if isinstance(error, OSError) and error.filename is None:  # a stream has no name
            raise
        if isinstance(error, OSError) and error.errno in _UNUSABLE:
            name = shortened(str(error.filename))
            raise UsageError(f"{name}: {error.strerror}", "choose another path") from error
        path = _written(error, None if run is None or not is_run(run) else run)
        raise InternalError(
            f"internal error: {type(error).__name__}: {first_line(error)}",
            f"please report it with {path}, which has the traceback"
            if path
            else "please report it; there was no room for its traceback",
        ) from error


def _written(error: BaseException, run: Path | None) -> Path | None:
    """Write the traceback and return the file, None where that is not possible."""
    text = (
        f"precision-bisect {version('precision-bisect')}, Python {platform.python_version()}, "
        f"{platform.platform()}\n{shlex.join(sys.argv)}\n\n"
        f"{''.join(traceback.format_exception(error))}"
    )
    for place in (run, None) if run else (None,):
        with suppress(OSError):
            path = _temporary() if place is None else new_log(place / LOGS, "internal_error")
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
            return path
    return None


def _temporary() -> Path:
    descriptor, name = tempfile.mkstemp(".txt", "precision-bisect-traceback-")
    os.close(descriptor)
    return Path(name)
