"""Flags of a closed loop: how many steps a model runs, and what is fed back into it."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from precision_bisect.errors import UsageError
from precision_bisect.settings.flags import flag
from precision_bisect.settings.reading import patterns

_loop = partial(flag, "verdict")
MOST_STEPS = 10_000


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """How outputs become the inputs of a next step; without any of it a model runs once.

    Each `feed` is OUTPUT:INPUT[:HOW]. `loop` may be the function itself, too.
    """

    steps: int = _loop(
        1,
        f"run the model N times, up to {MOST_STEPS}, and judge the last step; a sample is the "
        "first inputs ({})",
        metavar="N",
        least=1,
        most=MOST_STEPS,
    )
    feed: Sequence[str] = _loop(
        (),
        "with --steps: an output that is an input of the next step; present.*:past.* feeds "
        "all of that name. HOW: argmax of the last place, append behind the input (of itself:"
        " its last column), next counts on; repeatable",
        metavar="OUTPUT:INPUT[:HOW]",
        gather=patterns,
    )
    each_step: bool = _loop(False, "judge every step, not the last alone; of what grows, its end")
    loop: str | Callable[..., Any] | None = _loop(
        None,
        "a function(run, inputs) that calls run(inputs) at will, and returns a dict of the "
        "outputs to judge",
        metavar="SCRIPT.py:FUNCTION",
    )

    @property
    def looped(self) -> bool:
        """Whether a sample is more than one inference."""
        return self.steps > 1 or self.loop is not None


def check_loop(options: LoopOptions) -> Iterator[tuple[bool, str, str]]:
    """Yield whether values cannot work, how that is said, and what to do."""
    # Python callers give what they like.
    feed: Any = options.feed
    listed = isinstance(feed, Sequence) and not isinstance(feed, str)
    texts = listed and {*map(type, feed)} <= {str}
    yield not texts, f"feed cannot be {feed!r}", "give a list of OUTPUT:INPUT"
    own = options.loop is not None
    both = own and (options.steps > 1 or bool(options.feed) or options.each_step)
    yield both, "--loop runs all steps itself", "leave out --steps, --feed and --each-step"
    useless = bool(options.feed) or options.each_step
    yield (
        useless and options.steps == 1,
        "--feed and --each-step need --steps",
        "give --steps N, 2 or more",
    )
    idle = options.steps > 1 and not options.feed
    again = f"--steps {options.steps} without --feed would run the same step again"
    yield idle, again, "say what goes back by --feed OUTPUT:INPUT"


def loop_of_check(check: object) -> str | None:
    """Return the --loop that `--check SCRIPT.py` means: the script's function `loop`, if any."""
    if not isinstance(check, str) or not check.endswith(".py"):
        return None
    with suppress(OSError, ValueError):
        if re.search(r"^def loop\(", Path(check).read_text(encoding="utf-8"), re.MULTILINE):
            return f"{check}:loop"
    return None


def script_of_loop(loop: str) -> tuple[str, str]:
    """Return the script and the function of --loop. Raises UsageError."""
    path, _, name = loop.rpartition(":")
    if not path or not name:
        hint = "write --loop script.py:function"
        raise UsageError(f"--loop {loop!r} names no function", hint)
    return path, name
