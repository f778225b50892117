"""Functions from the user's own Python files: data loaders and task metrics.

The standard library's importer is used rather than Polygraphy's `import_from_script`, which looks
a script up by its bare name, so that a file named like an imported module gives that module.
"""

import hashlib
import importlib.util
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from precision_bisect.errors import UsageError
from precision_bisect.machine.stopping import AnswersSignals, Interrupted

_PACKAGE = Path(__file__).parents[1]
_RUNNING = threading.RLock()
_exit = os._exit
_may_exit = False


class ScriptFailed(Exception):
    """What a script has raised, in one line; its own exception is the cause."""


class OutOfMemory(UsageError, MemoryError):
    """A script found no memory: in a child that costs the trial, elsewhere it ends the run."""


def let_scripts_exit() -> None:
    """Let `os._exit` end this process: it is a child, whose end is an outcome."""
    global _may_exit
    _may_exit = True


def load_function(path: Path, name: str) -> Callable[..., Any]:
    """Return the function `name` of the Python file at `path`.

    The file may import modules beside it. Raises UsageError when the file is missing, does not
    run, or lacks the function.
    """
    if not path.is_file():
        raise UsageError(f"no such script: {path}", "check the path")
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(f"precision_bisect_user_{place}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file", "its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up there
    try:
        with running_script(path):
            spec.loader.exec_module(module)
    except ScriptFailed as failed:
        del sys.modules[spec.name]
        raise UsageError(f"{path} does not run: {failed}", "run it on its own first") from failed
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{path} has no function {name}()", f"define {name} in it")
    loaded_function: Callable[..., Any] = function
    return loaded_function


def script_copy(path: Path, source: bytes, what: str) -> Path:
    """Return where a script is in this process, maybe of another machine.

    That is a copy where it is not at its path, or has changed since.
    """
    with suppress(OSError):
        if path.read_bytes() == source:
            return path
    copy = Path(tempfile.mkdtemp(prefix=f"precision-bisect-{what}-")) / path.name
    copy.write_bytes(source)
    return copy


@contextmanager
def running_script(path: Path | None) -> Iterator[None]:
    """Run a script's own code inside the block: whatever it raises becomes ScriptFailed.

    Imports find what lies beside it, if it is a file, and prints go to stderr. One thread at a
    time is inside: both are the process's, and scripts are not written for more.
    """
    folders = [] if path is None else [str(path.resolve().parent)]
    with _RUNNING:
        sys.path[:0] = folders
        former = os._exit
        if not _may_exit:
            raising = partial(_raise_exit, os.getpid())
            setattr(os, "_exit", raising)  # noqa: B010 - mypy forbids the plain form
        try:
            with redirect_stdout(sys.stderr):
                yield
        except BaseException as error:
            if _is_interrupt(error):
                raise
            raise ScriptFailed(_told(error)) from error
        finally:
            setattr(os, "_exit", former)  # noqa: B010 - as above
            for folder in folders:
                if folder in sys.path:
                    sys.path.remove(folder)


def _told(error: BaseException) -> str:
    """Return what an error says, its type, and the line of the user's code that it comes from."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not Path(frame.filename).is_relative_to(_PACKAGE)
    ]
    said, kind = first_line(error), type(error).__name__
    # Below it may be a library that the code calls.
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    where = [f"in {Path(own[-1].filename).name}, line {own[-1].lineno}"] if own else []
    details = [*([kind] if kind != said else []), *where]
    return f"{said} ({' '.join(details)})" if details else said


def _raise_exit(here: int, status: int) -> NoReturn:
    """Stand in for `os._exit` while a script runs; what a script has forked may end itself."""
    if os.getpid() != here:
        _exit(status)
    raise SystemExit(f"os._exit({status})")


def _is_interrupt(error: BaseException) -> bool:
    """Tell a Ctrl-C from what a script raises by itself: where we answer signals, by its class."""
    if isinstance(error, Interrupted):
        return True
    handler = signal.getsignal(signal.SIGINT)
    ours = handler is signal.SIG_IGN or isinstance(
        getattr(handler, "__self__", None), AnswersSignals
    )
    here = threading.current_thread() is threading.main_thread()
    return type(error) is KeyboardInterrupt and here and not ours


def first_line(error: BaseException) -> str:
    """Return the first line of a foreign error, or its class where it says nothing."""
    try:
        lines = str(error).strip().splitlines()
    except BaseException:  # its own words fail, too
        lines = []
    return lines[0] if lines else type(error).__name__
