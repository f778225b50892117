"""What TensorRT's errors say about a build or a run, on one line."""

import re
from collections.abc import Sequence

from precision_bisect.backends.backend_plugin import Message
from precision_bisect.errors import printable
from precision_bisect.machine.gpu import full

_LONGEST = 300
"""Characters of a line, at most; a bound for readers."""
_SCAFFOLD = re.compile(r"--- (?:Begin|End) node ---|While parsing node number|cudaError 35\b")
"""Lines around an error that are none: the importer's frame, and the lack of a driver."""
_SKIPPED = re.compile(r"Skipping tactic")
"""An error after which a build goes on, so a later one says why it failed."""
_API_ERROR = re.compile(r"Error Code \d+: [\w ]+ \((.*)\)\s*$", re.S)
_PLACE = re.compile(r"\s*In \w+ at \S+:\d+")
_IMPORTER = re.compile(r"In function (\w+):\s*\[\d+\]\s*(.*)", re.S)
_CONDITION = re.compile(r"Assertion failed: .*?: (?=\S)")
_CUDA = re.compile(
    r"Error Code:? \d+: (?:Cuda|Cask|Cublas|Cudnn)\b(?!.*cudaError 35\b)"
    r"|Platform \(Cuda\) error|CUDA error (?!35\b)\d",
    re.S,
)
"""Errors of CUDA, or of a library that runs kernels in a build, other than a lack of a driver.

Myelin is a compiler: what it refuses is none, unless it says so.
"""
_NO_TACTIC = re.compile(r"Could not find any implementation")
"""What a build ends with after each of a layer's tactics was skipped, as warnings say."""
_PARSED = re.compile(
    r"^(?:Node name: (.+)|name: \"(.+)\")|While parsing node number \d+ (\[.*\])", re.M
)
"""The importer's frame names the node, or at least its operator and output."""


def first_error(messages: Sequence[Message]) -> str:
    """Return TensorRT's own first error on one line, without its source positions; "" for none."""
    errors = _errors(messages)
    plain = [text for text in errors if not _SCAFFOLD.search(text) and not _IMPORTER.search(text)]
    said = next((text for text in plain if not _SKIPPED.search(text)), "")
    if said:
        return core_of_error(said)
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
    line = printable(" ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
