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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

from precision_bisect.errors import UsageError, said_by
from precision_bisect.machine.answered_signals import AnswersSignals, Interrupted, code_of_others
from precision_bisect.machine.stopping import STOPS

_PACKAGE = Path(__file__).parents[1]
# Different lines that a script may print. A bound.
_MOST_LINES = 100
# The lines that scripts have printed since they were loaded, by their paths.
_printed: dict[Path, set[str]] = {}
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
    _printed.pop(path.resolve(), None)
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


class _EachLineOnce:
    """Writes lines to stderr that are not among those `printed`, until these are `_MOST_LINES`.

    For everything else it is stderr itself.
    """

    def __init__(self, printed: set[str]) -> None:
        self._printed = printed
        self._begun = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)

    def write(self, text: str) -> int:
        *lines, self._begun = f"{self._begun}{text}".split("\n")
        for line in lines:
            if line not in self._printed and len(self._printed) < _MOST_LINES:
                self._printed.add(line)
                sys.stderr.write(f"{line}\n")
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.write(text)

    def end_line(self) -> None:
        """Write what was begun and has no end of line."""
        if self._begun:
            self.write("\n")


@contextmanager
def running_script(path: Path | None) -> Iterator[None]:
    """Run a script's own code inside the block: whatever it raises becomes ScriptFailed.

    Imports find what lies beside it, if it is a file. What it prints goes to stderr, of a file
    each line once: a check runs with every trial, a loop with every sample. One thread at a time
    is inside: all of that is the process's, and scripts are not written for more. Raises Stopped
    where the run's time is over, and Ctrl-C, even if the script has caught that.
    """
    folders = [] if path is None else [str(path.resolve().parent)]
    printed = None
    if path is not None:
        printed = _EachLineOnce(_printed.setdefault(path.resolve(), set()))
    with _RUNNING:
        sys.path[:0] = folders
        former = os._exit
        if not _may_exit:
            raising = partial(_raise_exit, os.getpid())
            setattr(os, "_exit", raising)  # noqa: B010 - mypy forbids the plain form
        try:
            with redirect_stdout(cast("TextIO", printed or sys.stderr)), code_of_others():
                yield
        except BaseException as error:
            if _is_interrupt(error):
                raise
            raise ScriptFailed(_told(error)) from error
        finally:
            if printed is not None:
                printed.end_line()
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
        and not frame.filename.startswith("<frozen importlib")
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
    """Tell a Ctrl-C, or the end of the time, from what a script raises by itself.

    Where we answer signals, that is told by its class.
    """
    if isinstance(error, (Interrupted, *STOPS)):
        return True
    handler = signal.getsignal(signal.SIGINT)
    ours = handler is signal.SIG_IGN or isinstance(
        getattr(handler, "__self__", None), AnswersSignals
    )
    here = threading.current_thread() is threading.main_thread()
    return type(error) is KeyboardInterrupt and here and not ours


def first_line(error: BaseException) -> str:
    """Return the first line of a foreign error, or its class where it says nothing."""
    lines = said_by(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
