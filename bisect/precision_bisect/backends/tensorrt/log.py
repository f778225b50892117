"""TensorRT's messages, collected instead of printed.

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
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

from precision_bisect.backends.backend_plugin import Message
from precision_bisect.backends.tensorrt.flavour import Flavour, cannot_start, use_in_polygraphy
from precision_bisect.machine.polygraphy_quiet import quiet
from precision_bisect.machine.shared_context import SharedContext

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
_EACH_VALUE = "is out of range. Clamping to: "
"""A warning on every single value that is clamped; one on all of them follows."""


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
        with quiet(), _UNWARNED, _UNCOLLECTED:
            yield messages
    except TypeError as error:
        if NOTHING_MADE in str(error):
            raise cannot_start(flavour) from error
        raise
    finally:
        if outer is None:
            del logger.blocks[thread]
        else:
            outer.extend(messages)
            logger.blocks[thread] = outer


@contextmanager
def _unwarned() -> Iterator[None]:
    """Let Polygraphy call what some library has deprecated, since other libraries need it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


_UNWARNED = SharedContext(_unwarned)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Put garbage collection off."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_UNCOLLECTED = SharedContext(_uncollected)


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
