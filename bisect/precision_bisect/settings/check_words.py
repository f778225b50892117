"""What `--check` says: a function of the user's script, or a check that comes along."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from precision_bisect.errors import UsageError


class FirstLimit(NamedTuple):
    """A limit to begin with, and what it is the limit of."""

    tol: float
    what: str

    def __str__(self) -> str:
        """Return both, as behind --tol."""
        return f"{self.tol:g}, {self.what}"


READY_MADE: Mapping[str, FirstLimit] = {
    "boxes": FirstLimit(0.05, "the share of boxes that may be lost or moved"),
    "ctc": FirstLimit(0.01, "the share of characters that may change"),
    "embeddings": FirstLimit(0.001, "the largest 1 - cosine"),
    "iou": FirstLimit(0.02, "1 - the mean IoU of the classes of pixels"),
    "perplexity": FirstLimit(0.01, "the share by which perplexity may rise"),
    "ssim": FirstLimit(0.01, "the largest 1 - SSIM"),
    "top1": FirstLimit(0.01, "the share of classes that may change"),
    "top5": FirstLimit(0.02, "the share of the first five classes that may change"),
}
"""By the name of each check. `task_checks` has them, which needs numpy."""


class CheckWords(NamedTuple):
    """A script and its function, or a name in READY_MADE and the outputs that it judges."""

    script: Path | None
    name: str
    outputs: str = ""

    def __str__(self) -> str:
        """Return how messages call it: a script by its name, without its folder."""
        if self.script:
            return f"{self.script.name}:{self.name}"
        return f"{self.name}:{self.outputs}" if self.outputs else self.name


def read_check(text: str) -> CheckWords:
    """Return what the value of --check means. Raises UsageError."""
    name, colon, outputs = text.partition(":")
    if name in READY_MADE:
        if colon and not outputs:
            raise UsageError(f"--check {text!r} names no output", f"write --check {name}:OUTPUT")
        return CheckWords(None, name, outputs)
    path, _, name = text.rpartition(":")
    if not path or not name:
        raise UsageError(
            f"--check {text!r} names no function",
            f"write --check script.py:function, or one of {', '.join(READY_MADE)}",
        )
    return CheckWords(Path(path), name)


def judged_outputs(words: CheckWords, outputs: Sequence[str]) -> Sequence[str]:
    """Return the outputs that a check judges: the named ones, else all. Raises UsageError."""
    if not words.outputs:
        return outputs
    if words.outputs in outputs:
        return [words.outputs]
    named = words.outputs.split(",")
    for name in named:
        if name not in outputs:
            raise UsageError(
                f"--check {words.name} is to judge {name!r}, which is no output of the model",
                f"its outputs are {', '.join(outputs)}",
            )
    return named
