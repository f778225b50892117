"""How a process that was begun here has ended, in the same words wherever that is told.

A library that ends it by a fault is named by the call that Python was in: `tell_faults` has that
written behind all that the process has printed.
"""

import faulthandler
import re
import signal
import sysconfig
from importlib.metadata import packages_distributions, version
from pathlib import Path

from precision_bisect.errors import printable, shortened

_ASKED = frozenset(
    getattr(signal, name, 0) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGXCPU")
)
SHELL = 128
"""What shells add to the number of the signal that has ended a process."""
_HEADING = "Fatal Python error: "
_FRAME = re.compile(r'^  File "(.+)", line \d+ in (.+)$', re.M)
_PACKAGES = re.compile(r"[/\\](?:site|dist)-packages[/\\](\w+)")
_OWN = Path(__file__).parents[1].name


def tell_faults() -> None:
    """Have a fault of this process tell on standard error, as the file is now, where it was."""
    faulthandler.enable(2)


def is_fault(code: int) -> bool:
    """Tell whether code inside a process has ended it; 1 is Python's own end, after an error.

    `code` is as of `how_ended`. Most signals that others send are told apart.
    """
    return code not in (0, 1) and -code not in _ASKED


def how_ended(code: int, printed: bytes = b"", *, at: str = "") -> str:
    """Return how a process ended, as `ended by SIGSEGV (Segmentation fault)`.

    `code` is as of `subprocess`, negative for a signal, and 0 where nobody tells it. `printed` is
    what the process wrote, or its end: from it come the call of a fault, unless it is known what
    the process was `at`, and the last line.
    """
    words, _, trace = printed.decode("utf-8", "replace").partition(_HEADING)
    last = words.strip().rpartition("\n")[2]
    said = f", having said: {printable(shortened(last))}" if last else ""
    if code >= 0:
        return f"ended {f'with exit code {code}' if code else 'without an answer'}{said}"
    memory = ", perhaps out of memory" if -code == getattr(signal, "SIGKILL", None) else ""
    call = "" if at else _call(trace)
    return f"ended by {_name(-code)}{memory}{f' in a call of {call}' if call else ''}{said}"


def of_shell(code: int) -> int:
    """Return a shell's exit code as one of `how_ended`."""
    return SHELL - code if SHELL < code <= SHELL + 64 else code


def what_helps(code: int, otherwise: str) -> str:
    """Return what to do after such an end; `otherwise` is for one that is no lack of memory
    or of CPU time."""
    if -code == getattr(signal, "SIGXCPU", None):
        return "allow more CPU time (ulimit -t)"
    memory = -code == getattr(signal, "SIGKILL", None)
    return "give it more memory, or fewer and smaller samples" if memory else otherwise


def _name(number: int) -> str:
    """Return a signal by its name and what it means, as `SIGSEGV (Segmentation fault)`."""
    try:
        return f"{signal.Signals(number).name} ({signal.strsignal(number)})"
    except ValueError:
        return f"signal {number}"


def _call(trace: str) -> str:
    """Return the library, or script, whose code made the call of a fault, "" where none did.

    Calls that this package makes are no library's: what it called has no frame of Python.
    """
    # The thread at fault, if it is one of Python's; else the main one, which is told last.
    _, current, frames = trace.partition("Current thread ")
    frames = frames if current else trace.rpartition("\nThread ")[2]
    for file, function in _FRAME.findall(frames.partition("\n\n")[0]):
        if _OWN in Path(file).parts:
            return ""
        if match := _PACKAGES.search(file):
            names = packages_distributions().get(match[1], ())
            library = f"{names[0]} {version(names[0])}" if names else match[1]
            return printable(f"{library} ({function})")
        if not (file.startswith("<") or file.startswith(sysconfig.get_path("stdlib"))):
            return printable(f"{Path(file).name} ({function})")
    return ""
