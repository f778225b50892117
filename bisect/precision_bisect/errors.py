"""Errors that end a command, and the exit codes they end it with.

Every error says in one line what happened and, in `hint`, what to do about it; the command line
prints both and never a traceback for one of these.
"""

import errno
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum


class ExitCode(IntEnum):
    """What the process returns, for scripts and CI. BUDGET: ended early, for crashes, too.

    INTERNAL: an error of this package, as EX_SOFTWARE of sysexits.h; Python's own 1 is taken.
    NOT_BUILT: there is no engine, whatever the plan. NOT_OBSERVABLE is one of `verify`: what the
    engine makes of the plan does not show. BAD_EXPORT: the exported model does not open, or gives
    something else than was judged.
    """

    OK = 0
    NO_PLAN = 1
    USAGE = 2
    BUDGET = 3
    NOT_BUILT = 4
    NOT_OBSERVABLE = 5
    BAD_EXPORT = 6
    INTERNAL = 70
    INTERRUPTED = 130


class PrecisionBisectError(Exception):
    """Root of all errors of this package: what happened, what to do about it, and an exit code.

    `further` are lines that a command prints after it, such as a script to fill in.
    """

    exit_code = ExitCode.USAGE
    further = ""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message, hint)  # pickle makes it of these again
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.one_line()

    def one_line(self) -> str:
        """Return message and hint as one line of printable text.

        Model files are untrusted, so line breaks and control characters that they put into names
        are replaced before anything reaches a terminal.
        """
        return printable(" ".join(f"{self.message}; {self.hint}".split()))


class StepFailed(RuntimeError):
    """An inference that a loop feeds does not run."""

    hint = "check --feed, or write the steps yourself: --loop script.py:function"


class UsageError(PrecisionBisectError):
    """A flag or a combination of flags that cannot work."""


class ModelError(PrecisionBisectError):
    """A model file that cannot be read, or that ONNX Runtime refuses."""


class InputError(PrecisionBisectError):
    """Inputs that do not fit the model."""


class RunFolderError(PrecisionBisectError):
    """The run folder or the ledger in it cannot be used."""


class RefusedError(PrecisionBisectError):
    """A verdict that would be false, such as FP16 types on ONNX Runtime's CPU provider."""


class ExecutorError(PrecisionBisectError):
    """An executor that cannot be used, or was lost; what it had found is in the ledger."""


class SearchInterrupted(KeyboardInterrupt):
    """Ctrl-C in `precision_bisect.find`; `result` is what the search had found until then."""

    def __init__(self, result: object) -> None:
        super().__init__(
            "interrupted; .result has the best so far: in a notebook sys.last_value.result"
        )
        self.result = result


class PluginError(PrecisionBisectError):
    """Something named that is not installed or does not load, such as a strategy or a backend."""


class InternalError(PrecisionBisectError):
    """An exception that nothing in this package should raise."""

    exit_code = ExitCode.INTERNAL


def printable(text: str) -> str:
    """Return `text` on one line, with control characters replaced by a visible mark."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def counted(number: int, what: str) -> str:
    """Return a number of things, such as `1 layer` and `2 layers`."""
    return f"{number} {what}{'s' * (number != 1)}"


def first_of(names: Sequence[str], most: int = 1) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def shortened(text: str, most: int = 120) -> str:
    """Return a library's text on one line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


_TOO_LITTLE = {
    errno.EMFILE: ("too many open files", "allow more, such as ulimit -n 1024"),
    errno.ENFILE: ("too many open files on this machine", "end what holds them"),
    errno.EAGAIN: ("no more processes or threads may be started", "allow more (ulimit -u)"),
    errno.ENOMEM: (
        "the memory ran out",
        "give it more, such as ulimit -v unlimited, or fewer and smaller samples",
    ),
}


def ran_out(error: BaseException) -> UsageError | None:
    """Return what a process has too little of as an error that says so; None for other errors.

    A stream that takes nothing more at the moment lacks nothing of that kind.
    """
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError):
        number = errno.ENOMEM
    elif isinstance(error, RuntimeError) and said_by(error) == "can't start new thread":
        number = errno.EAGAIN
    elif isinstance(error, BlockingIOError) and hasattr(error, "characters_written"):
        number = None
    return UsageError(*_TOO_LITTLE[number]) if number in _TOO_LITTLE else None


RAISED_BY_OTHERS = (Exception, SystemExit, GeneratorExit)
"""What a callable of the user's may raise but Ctrl-C."""


def said_by(error: BaseException) -> str:
    """Return what an exception says, "" where its own words fail, too."""
    try:
        return str(error)
    except BaseException:
        return ""


def in_words(error: BaseException) -> str:
    """Return what an exception says, with its type where an import does not usually raise it."""
    text = " ".join(said_by(error).split())
    usual = isinstance(error, ImportError | OSError) and text
    return text if usual else f"{type(error).__name__}: {text}".rstrip(": ")


@contextmanager
def errors_of_others(kind: type[PrecisionBisectError], what: str, hint: str) -> Iterator[None]:
    """Have whatever code of others raises in the block be an error of this kind."""
    try:
        yield
    except PrecisionBisectError:
        raise
    except RAISED_BY_OTHERS as error:
        raise kind(f"{what}: {in_words(error)}", hint) from error


def errors_of_inputs() -> AbstractContextManager[None]:
    """Have whatever samples of the user's raise, or what yields them, be an InputError."""
    return errors_of_others(InputError, "inputs failed", "run what makes them on its own")
