"""Whether the samples were made up, in words."""

from precision_bisect.errors import counted, printable
from precision_bisect.runs.results.other_targets import InputRange
from precision_bisect.runs.results.result import Inputs


def made_up(inputs: Inputs | None) -> str:
    """Say that the samples were made up; "" where they were given, or nothing tells."""
    if inputs is None or not inputs.synthetic:
        return ""
    count = inputs.samples
    return (
        f"made up, {counted(count, 'sample')}: real ones may reach ranges that these do "
        "not, and layers that overflow there are missed; give --inputs"
    )


def in_range(told: InputRange, low: str) -> str:
    """Say what an operator makes of an input's size, and what the answer came to at its ends."""
    name = printable(told.input)
    least, most = told.samples
    operators = " and ".join(dict.fromkeys(told.operators))
    first = f" ({printable(told.layers[0])})" if len(told.layers) == 1 else ""
    verb = "depend" if len({*told.operators}) > 1 else "depends"
    who = f"{operators}{first} {verb} on the size of {name}" if operators else name
    said = (
        f"{who}: your samples have {least:g} to {most:g}, where {low.upper()} has steps of "
        f"{told.step:.2g}"
    )
    if told.range is None:
        return f"{said}; --range {name}=LOW:HIGH tries the ends of its range"
    ends = f"{told.range[0]:g} to {told.range[1]:g}"
    said += f", and of {told.step_at_ends or 0.0:.2g} in {ends}"
    if told.passed is None:
        return f"{said}; not tried"
    figure = "" if told.error is None else f", error {told.error:.3g}"
    if told.passed:
        return f"{said}; holds on {told.variants} made-up variants at its ends{figure}"
    return (
        f"{said}; FAILS on {told.failed} of {told.variants} made-up variants at its ends{figure}: "
        "give samples of the whole range"
    )
