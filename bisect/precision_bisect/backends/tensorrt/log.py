"""TensorRT's messages, collected instead of printed, and what its errors say, on one line.

TensorRT wants one logger per process: a second one draws a warning and may be ignored. Polygraphy
takes the logger that lies in its module, so all messages of its loaders and runners come here.

If something else in the process has a logger of its own, TensorRT complains while it holds a lock
that the end of a builder takes, too. A garbage collection during that message may end an earlier
builder (that of a failed build is in a reference cycle with its exception) and wait for the lock
for ever. So garbage collection is off meanwhile.
"""

import gc
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

from precision_bisect.backends.backend_plugin import Message
from precision_bisect.backends.tensorrt.flavour import Flavour, cannot_start, use_in_polygraphy
from precision_bisect.errors import printable, shortened
from precision_bisect.machine.gpu import full
from precision_bisect.machine.polygraphy_quiet import SharedContext, quiet

LAYERS_HEADING = "Layers:"
"""The beginning of the message that describes a built engine layer by layer."""
AFFECTED = "List of affected weights:"
"""The beginning, apart from spaces, of the message that names the weights of the warning before.
"""
IMPORTED = "Importing initializer: "
"""The beginning of the message before those on the values of an initializer."""
UNLISTED = re.compile(r"\s*Detected layernorm nodes in \w+\.?\s*")
"""A warning whose names the next message lists, separated by commas."""
NOTHING_MADE = "factory function returned nullptr"
"""What the bindings say if TensorRT made no builder or runtime."""
LOUD = ("INTERNAL_ERROR", "ERROR", "WARNING")
"""The severities that are always kept; names come with lower ones."""
# A warning on every single value that is clamped; one on all of them follows.
_EACH_VALUE = "is out of range. Clamping to: "
# Characters of a line, at most; a bound for readers.
_LONGEST = 300
# Lines around an error that are none: the importer's frame, and the lack of a driver.
_SCAFFOLD = re.compile(r"--- (?:Begin|End) node ---|While parsing node number|cudaError 35\b")
# An error after which a build goes on, so a later one says why it failed.
_SKIPPED = re.compile(r"Skipping tactic")
_API_ERROR = re.compile(r"Error Code \d+: [\w ]+ \((.*)\)\s*$", re.S)
_PLACE = re.compile(r"\s*In \w+ at \S+:\d+")
_IMPORTER = re.compile(r"In function (\w+):\s*\[\d+\]\s*(.*)", re.S)
_CONDITION = re.compile(r"Assertion failed: .*?: (?=\S)")
# Errors of CUDA, or of a library that runs kernels in a build, other than a lack of a driver.
# Myelin is a compiler: what it refuses is none, unless it says so.
_CUDA = re.compile(
    r"Error Code:? \d+: (?:Cuda|Cask|Cublas|Cudnn)\b(?!.*cudaError 35\b)"
    r"|Platform \(Cuda\) error|CUDA error (?!35\b)\d",
    re.S,
)
# What a build ends with after each of a layer's tactics was skipped, as warnings say.
_NO_TACTIC = re.compile(r"Could not find any implementation")
# The importer's frame names the node, or at least its operator and output.
_PARSED = re.compile(
    r"^(?:Node name: (.+)|name: \"(.+)\")|While parsing node number \d+ (\[.*\])", re.M
)


@contextmanager
def collected(flavour: Flavour) -> Iterator[list[Message]]:
    """Yield the list in which the messages of the block appear; nothing is printed.

    Errors, warnings, the names that belong to them and the description of the engine are kept; a
    build says much more. If several threads have blocks, each gets its own thread's messages, and
    those of threads without a block. A block gets the messages of a block inside it once that one
    ends. Raises RefusedError where Polygraphy uses the other library already, and where CUDA does
    not start, so that TensorRT makes nothing.
    """
    use_in_polygraphy(flavour)
    from polygraphy.backend.trt import util as trt_util

    logger = _logger(flavour.module)
    messages: list[Message] = []
    thread = threading.get_ident()
    outer = logger.blocks.get(thread)
    logger.blocks[thread] = messages
    trt_util.TRT_LOGGER = logger
    try:
        with quiet(), _UNDISTURBED:
            yield messages
    except TypeError as error:
        if NOTHING_MADE in str(error):
            raise cannot_start(flavour) from error
        raise
    finally:
        if outer is None:
            del logger.blocks[thread]
        else:
            # What a block inside has heard is part of what the outer one waits for.
            outer.extend(messages)
            logger.blocks[thread] = outer


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Put garbage collection off, and let Polygraphy call what some library has deprecated."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        if collecting:
            gc.enable()


_UNDISTURBED = SharedContext(_undisturbed)


@cache
def _logger(module: ModuleType) -> Any:
    class CollectingLogger(module.ILogger):  # type: ignore[name-defined,misc]
        """Hands messages to whoever collects; drops them otherwise."""

        def __init__(self) -> None:
            module.ILogger.__init__(self)
            self.blocks: dict[int, list[Message]] = {}

        def log(self, severity: Any, msg: str) -> None:
            own = self.blocks.get(threading.get_ident())
            # A thread without a block (TensorRT starts some) is heard by every block.
            for messages in tuple(self.blocks.values()) if own is None else (own,):
                _note(messages, Message(severity.name, msg))

    return CollectingLogger()


def _note(messages: list[Message], message: Message) -> None:
    """Append a message if it is one to keep; an initializer only if a message is about it."""
    text, before = message.text, messages[-1].text if messages else ""
    if message.severity in LOUD:
        if _EACH_VALUE not in text:
            messages.append(message)
        return
    if before.startswith(IMPORTED):
        # Nothing was said of that initializer; the next message may be about a node.
        messages.pop()
    if (
        text.startswith((LAYERS_HEADING, IMPORTED))
        or text.lstrip().startswith(AFFECTED)
        or UNLISTED.fullmatch(before)
    ):
        messages.append(message)


def first_error(messages: Sequence[Message]) -> str:
    """Return TensorRT's own first error on one line, without its source positions; "" for none."""
    errors = _errors(messages)
    plain = [text for text in errors if not _SCAFFOLD.search(text) and not _IMPORTER.search(text)]
    error = next((text for text in plain if not _SKIPPED.search(text)), "")
    if error:
        return core_of_error(error)
    importer = next((match for text in errors if (match := _IMPORTER.search(text))), None)
    if importer is not None:
        frames = [part for text in errors for match in _PARSED.findall(text) for part in match]
        place = next((part for part in reversed(frames) if part), "parser")
        return printable_line(f"{place}: {_checked(importer[1], importer[2])}")
    return core_of_error((plain or errors)[0]) if errors else ""


def cuda_failed(messages: Sequence[Message]) -> bool:
    """Tell whether CUDA failed, after which a process may have no working context."""
    return any(map(_CUDA.search, _errors(messages)))


def out_of_memory(messages: Sequence[Message]) -> bool:
    """Tell whether a build failed for want of the GPU's memory."""
    errors = _errors(messages)
    starved = any(full(message.text) for message in messages)
    return any(map(full, errors)) or (starved and any(map(_NO_TACTIC.search, errors)))


def _errors(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages if "ERROR" in message.severity]


def parser_error(function: str, description: str) -> str:
    """Return what the parser says against a node, on one line.

    `function` is the parser's own that found it. If the description is a failed check of the
    parser's, only the function's name says something.
    """
    for line in description.splitlines():
        if _API_ERROR.search(line) and not _SCAFFOLD.search(line):
            return core_of_error(line)
    return printable_line(_checked(function, description))


def core_of_error(text: str) -> str:
    """Return the core of one error of TensorRT on one line."""
    core = _API_ERROR.search(text)
    return printable_line(_PLACE.sub("", core[1] if core else text))


def _checked(function: str, description: str) -> str:
    """Return the message of a failed check of the parser; its condition only without one."""
    return f"{function}: {_CONDITION.sub('', description)}"


def printable_line(text: str) -> str:
    """Return the text as one line that is safe to print, cut where it is very long."""
    return printable(shortened(text, _LONGEST))
