"""A closed loop: what a step gives is fed into the next one.

Exported scripts have this module in them, so it needs numpy alone, and Python 3.8.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class Link(NamedTuple):
    """What an input is in the next step: the `output`, or "" for what it has been itself.

    `how` is "" for that as it is; "argmax" for its largest class, in the last place alone;
    "append" for what the input has been with that behind it along the `axis` (of itself the last
    column); "next" for the last value and one.
    """

    output: str
    input: str
    how: str = ""
    axis: int = -1


def looped(
    run: Callable[[Any], Any], feed: Mapping[str, Any], steps: int, links: Sequence[Link]
) -> Iterator[Any]:
    """Yield what each step gives, by output; what no link feeds stays as it is in the `feed`."""
    outputs = run(feed)
    yield outputs
    for _ in range(steps - 1):
        feed = {**feed, **{link.input: _fed(link, feed, outputs) for link in links}}
        outputs = run(feed)
        yield outputs


def _fed(link: Link, feed: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
    own = feed[link.input]
    value = outputs[link.output] if link.output else own
    if link.how == "argmax":
        value = np.argmax(value, -1)
        # Of a sequence the last place; one class of a row is a sequence of one.
        value = value[..., -1:] if value.ndim > 1 else value.reshape(-1, *(1,) * (own.ndim - 1))
    elif link.how == "next":
        value = (value[..., -1:] if value.ndim else value) + 1
    elif link.how == "append":
        new = value if link.output else np.take(value, [-1], link.axis)
        value = np.concatenate([own, new], link.axis)
    return np.asarray(value, own.dtype)


def run_function(function: Any, run: Callable[[Any], Any], feed: Any) -> Any:
    """Return what the user's loop returns, or the outputs of a step with NaN or Inf.

    Raises what `run` raises, even if the function catches it.
    """
    broken: list[Any] = []
    errors: list[Exception] = []

    def step(inputs: Any) -> Any:
        try:
            outputs = run(inputs)
        except Exception as error:
            errors.append(error)
            raise
        if not all_finite(outputs):
            broken.append(outputs)
            raise FloatingPointError("a step gives NaN or Inf")
        return dict(outputs)

    try:
        returned = function(step, {name: array.copy() for name, array in feed.items()})
    except Exception:
        if not broken:
            raise
        returned = {}
    # A function that catches every exception must not turn a lost engine into a verdict.
    if errors and not broken:
        raise errors[0]
    return broken[0] if broken else {name: np.asarray(a) for name, a in returned.items()}


def all_finite(outputs: Any) -> bool:
    """Return whether no output holds NaN or Inf."""
    return all(np.isfinite(a).all() for a in outputs.values() if a.dtype.kind == "f")


def joined(steps: Sequence[Mapping[str, Any]]) -> "dict[str, Any]":
    """Return what all steps give, by output: step behind step along the first axis.

    Where the first step has more places than the others, as of a prompt, along that axis. Of what
    grows the end is all.
    """
    return {name: _joined([outputs[name] for outputs in steps]) for name in steps[0]}


def _joined(arrays: Sequence[Any]) -> Any:
    first, last = arrays[0].shape, arrays[-1].shape
    if all(array.shape == first for array in arrays):
        return np.concatenate([np.atleast_1d(array) for array in arrays])
    if any(array.ndim != len(first) for array in arrays):
        return arrays[-1]
    axes = [axis for axis in range(len(first)) if len({a.shape[axis] for a in arrays}) > 1]
    if len(axes) == 1 and last[axes[0]] < first[axes[0]]:
        return np.concatenate(arrays, axes[0])
    return arrays[-1]


def run_sample(
    run: Callable[[Any], Any], feed: Any, loop: Mapping[str, Any], script: Callable[..., Any]
) -> Any:
    """Return the outputs to judge: of one inference, or of a loop as exported scripts have it.

    `script` returns a function by file and name.
    """
    if not loop:
        return run(feed)
    if "script" in loop:
        return run_function(script(loop["script"], loop["function"]), run, feed)
    steps: list[Any] = []
    for outputs in looped(run, feed, loop["steps"], [Link(*link) for link in loop["feeds"]]):
        if not all_finite(outputs):
            return outputs  # an ArgMax would hide it
        steps = [*steps, outputs] if loop["each_step"] else [outputs]
    return joined(steps) if loop["each_step"] else steps[-1]
