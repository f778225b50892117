"""From flags to a loop: which output goes into which input, checked against the model.

Each refusal says what to do; what only a run can show, such as a shape that does not fit in the
second step, is said there.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from precision_bisect.errors import UsageError
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.types import TensorSpec
from precision_bisect.judging.inputs.closed_loop import Link
from precision_bisect.judging.inputs.input_shapes import show
from precision_bisect.judging.inputs.loops import PLAIN, ClosedLoop, FunctionLoop, Loop, ScriptLoop
from precision_bisect.options import Options
from precision_bisect.plugins import name_of
from precision_bisect.settings.loop_options import script_of_loop

# How an input is fed what it was itself.
_OWN = ("append", "next")
_HOWS = ("argmax", *_OWN)
_SCRIPT = "or write the steps yourself: --loop script.py:function"


def choose_loop(options: Options, model: Model) -> Loop:
    """Return how the options run a sample of the model.

    Raises UsageError for links between what the model has not, or what does not fit.
    """
    if options.loop is not None:
        outputs = {spec.name: spec.dtype for spec in model.outputs}
        if not isinstance(options.loop, str):
            return FunctionLoop(options.loop, name_of(options.loop), outputs)
        path, name = script_of_loop(options.loop)
        return ScriptLoop(Path(path), name, outputs)
    if not options.feed:
        return PLAIN
    links = [link for text in options.feed for link in _links(text, model)]
    fed = [link.input for link in links]
    for name in fed:
        if fed.count(name) > 1:
            raise UsageError(f"--feed feeds {name!r} twice", "feed each input once")
    return ClosedLoop(options.steps, tuple(links), options.each_step)


def fed_inputs(loop: Loop, model: Model) -> Sequence[str]:
    """Return the inputs that a loop feeds; a function may feed any."""
    if isinstance(loop, ClosedLoop):
        return [link.input for link in loop.links]
    return [spec.name for spec in model.inputs]


def _links(text: str, model: Model) -> Iterator[Link]:
    """Yield the links that a --feed means; names may hold colons. Raises UsageError."""
    outputs = {spec.name: spec for spec in model.outputs}
    inputs = {spec.name: spec for spec in model.inputs}
    head, _, how = text.rpartition(":")
    # The last word after a colon may be a way to feed, or the end of a name.
    ways = [(head, how)] if how in _HOWS and ":" in head else []
    pairs = [
        (source.strip(), target.strip(), how)
        for words, how in (*ways, (text, ""))
        for source, target in _splits(words)
    ]
    for source, target, how in pairs:
        links = [*_matches(source, target, how, outputs, inputs)]
        fitting = [link for link in links if link.input in inputs]
        if not fitting:
            continue
        for link in links:
            if link not in fitting:
                why = f"--feed {text!r} has no input {link.input!r} for {link.output!r}"
                raise UsageError(why, "write a pattern that leaves it out")
        for link in links:
            yield _checked(link, outputs, inputs)
        return
    source, target, how = pairs[0] if pairs else (text, "", "")
    names = [*outputs, *(inputs if how in _OWN else ())]
    if not target:
        why, hint = f"--feed {text!r} names no input", "write --feed OUTPUT:INPUT"
    elif all(_starred(source, name) is None for name in names):
        why = f"--feed names {source!r}, which is no output of the model"
        hint = f"its outputs are {', '.join(outputs)}"
    elif any(_starred(target.rpartition(":")[0], name) is not None for name in inputs):
        why = f"--feed {text!r} has no HOW {target.rpartition(':')[2]!r}"
        hint = "HOW is argmax, append or next"
    else:
        why = f"--feed {text!r} names {target!r}, which is no input of the model"
        hint = f"its inputs are {', '.join(inputs)}"
    raise UsageError(why, hint)


def _splits(words: str) -> Iterator[tuple[str, str]]:
    for place in (i for i, letter in enumerate(words) if letter == ":"):
        yield words[:place], words[place + 1 :]


def _starred(pattern: str, name: str) -> str | None:
    """Return what the star of a pattern stands for in a name, "" without one; None for another."""
    before, star, after = pattern.partition("*")
    if not star:
        return "" if name == pattern else None
    fits = name.startswith(before) and name.endswith(after)
    end = len(name) - len(after)
    return name[len(before) : end] if fits and end >= len(before) else None


def _matches(
    source: str,
    target: str,
    how: str,
    outputs: Mapping[str, TensorSpec],
    inputs: Mapping[str, TensorSpec],
) -> Iterator[Link]:
    """Yield the links of names, or of patterns with a star each; inputs need not be there."""
    if ("*" in source) != ("*" in target) or not target:
        return
    own = how in _OWN and source == target and source not in outputs
    for name in inputs if own else outputs:
        part = _starred(source, name)
        if part is not None:
            yield Link("" if own else name, target.replace("*", part, 1), how)


def _checked(
    link: Link, outputs: Mapping[str, TensorSpec], inputs: Mapping[str, TensorSpec]
) -> Link:
    """Return the link with the axis that it appends along. Raises UsageError if it cannot fit."""
    target = inputs[link.input]
    source = outputs[link.output] if link.output else target
    named = f"--feed {source.name}:{target.name}"
    whole = np.dtype(target.dtype or "O").kind in "iu"
    if link.how == "argmax":
        if not whole:
            raise UsageError(
                f"{named}:argmax feeds classes, and the input is {target.dtype}",
                "feed the output as it is, " + _SCRIPT,
            )
        if source.shape == ():
            raise UsageError(f"{named}:argmax: the output is one value", _SCRIPT[3:])
        return link
    if link.how == "next" and link.output:
        raise UsageError(
            f"{named}:next counts an input on, and {source.name!r} is an output",
            f"write --feed {target.name}:{target.name}:next",
        )
    if source.dtype != target.dtype:
        raise UsageError(
            f"{named}: the output is {source.dtype} and the input {target.dtype}",
            "add a Cast to the model, " + _SCRIPT,
        )
    if link.how == "next":
        if np.dtype(target.dtype or "O").kind not in "iuf":
            raise UsageError(f"{named}:next: {target.dtype} has no next value", _SCRIPT[3:])
        if target.shape and isinstance(target.shape[-1], int) and target.shape[-1] != 1:
            why = f"{named}:next gives one value, and the input is {show(target.shape)}"
            raise UsageError(why, _SCRIPT[3:])
        return link
    # Without shapes the first step shows whether it fits.
    if source.shape is None or target.shape is None:
        return _with_axis(link, target, named) if link.how else link
    if link.how == "append":
        link = _with_axis(link, target, named)
    unlike = len(source.shape) != len(target.shape) or any(
        isinstance(a, int) and isinstance(b, int) and a != b
        for axis, (a, b) in enumerate(zip(source.shape, target.shape, strict=True))
        if not (link.how == "append" and axis == link.axis % len(target.shape))
    )
    if unlike:
        raise UsageError(
            f"{named}: the output is {show(source.shape)} and the input {show(target.shape)}",
            "feed an output of the input's shape, " + _SCRIPT,
        )
    return link


def _with_axis(link: Link, target: TensorSpec, named: str) -> Link:
    """Return an appending link with its axis: the last open one of the input behind the batch."""
    open_axes = [axis for axis, size in enumerate(target.shape or ()) if not isinstance(size, int)]
    behind = [axis for axis in open_axes if axis] or open_axes
    if len(behind) != 1:
        raise UsageError(
            f"{named}:append: the input is {show(target.shape)}, which has "
            f"{'no' if not behind else 'more than one'} axis to grow along",
            _SCRIPT[3:],
        )
    return link._replace(axis=behind[0])
