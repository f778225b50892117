"""TensorRT's messages, collected instead of printed.

TensorRT wants one logger per process: a second one draws a warning and may be ignored. Polygraphy
takes the logger that lies in its module, so all messages of its loaders and runners come here.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from precision_bisect.backends.tensorrt.flavour import Flavour, use_in_polygraphy
from precision_bisect.polygraphy_quiet import quiet

LAYERS = "Layers:"
"""How the message begins that describes a built engine layer by layer."""
_KEPT = ("INTERNAL_ERROR", "ERROR", "WARNING")


@dataclass(frozen=True, slots=True)
class Message:
    """One message of TensorRT; `severity` is the name of a member of its enumeration."""

    severity: str
    text: str


@contextmanager
def collected(flavour: Flavour) -> Iterator[list[Message]]:
    """Yield the list in which the messages of the block appear; nothing is printed.

    Kept are errors, warnings and the description of the engine: a build says much more. Raises
    RefusedError where Polygraphy uses the other library already.
    """
    use_in_polygraphy(flavour)
    from polygraphy.backend.trt import util as trt_util

    logger = _logger(flavour.module)
    messages: list[Message] = []
    outer, logger.messages = logger.messages, messages
    trt_util.TRT_LOGGER = logger
    try:
        with quiet(), warnings.catch_warnings():
            # Polygraphy calls what some library has deprecated, for the sake of the others.
            warnings.simplefilter("ignore", DeprecationWarning)
            yield messages
    finally:
        logger.messages = outer


@cache
def _logger(module: ModuleType) -> Any:
    class CollectingLogger(module.ILogger):  # type: ignore[name-defined,misc]
        """Hands messages to whoever collects; drops them otherwise."""

        def __init__(self) -> None:
            module.ILogger.__init__(self)
            self.messages: list[Message] | None = None

        def log(self, severity: Any, msg: str) -> None:
            kept = severity.name in _KEPT or msg.startswith(LAYERS)
            if kept and self.messages is not None:
                self.messages.append(Message(severity.name, msg))

    return CollectingLogger()
