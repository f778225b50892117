"""TensorRT's messages, collected instead of printed.

TensorRT wants one logger per process: a second one draws a warning and may be ignored. Polygraphy
takes the logger that lies in its module, so all messages of its loaders and runners come here.

Where something else in the process has a logger of its own, TensorRT complains with a lock held
that the end of a builder takes, too. A garbage collection in the midst of that message may end an
earlier builder (that of a failed build is in a reference cycle with its exception), and wait for
the lock for ever. So there is none meanwhile.
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

LAYERS = "Layers:"
"""How the message begins that describes a built engine layer by layer."""
AFFECTED = "List of affected weights:"
"""How the message begins, spaces apart, that names the weights of the warning before it."""
IMPORTED = "Importing initializer: "
"""How the message begins before those on the values of an initializer."""
UNLISTED = re.compile(r"\s*Detected layernorm nodes in \w+\.?\s*")
"""A warning that the next message lists the names to, with commas between."""
NOTHING_MADE = "factory function returned nullptr"
"""What the bindings say where TensorRT made no builder or runtime."""
LOUD = ("INTERNAL_ERROR", "ERROR", "WARNING")
"""The severities that are always kept; names come with lower ones."""
_EACH_VALUE = "is out of range. Clamping to: "
"""A warning of every single value that is clamped; one of them all follows."""


@contextmanager
def collected(flavour: Flavour) -> Iterator[list[Message]]:
    """Yield the list in which the messages of the block appear; nothing is printed.

    Kept are errors, warnings, the names that belong to them, and the description of the engine: a
    build says much more. Of blocks in several threads each has its own thread's messages, and
    those of threads without a block. A block has those of a block inside it once that one ends.
    Raises RefusedError where Polygraphy uses the other library already, and where CUDA does not
    start, so that TensorRT makes nothing.
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
    """Let Polygraphy call what some library has deprecated, for the sake of the others."""
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
            for messages in tuple(self.blocks.values()) if own is None else (own,):
                _note(messages, Message(severity.name, msg))

    return CollectingLogger()


def _note(messages: list[Message], message: Message) -> None:
    """Append a message if it is one to keep; an initializer is while messages are about it."""
    text, before = message.text, messages[-1].text if messages else ""
    if message.severity in LOUD:
        if _EACH_VALUE not in text:
            messages.append(message)
        return
    if before.startswith(IMPORTED):
        # Nothing was said of that one; what comes may be about a node.
        messages.pop()
    if (
        text.startswith((LAYERS, IMPORTED))
        or text.lstrip().startswith(AFFECTED)
        or UNLISTED.fullmatch(before)
    ):
        messages.append(message)
