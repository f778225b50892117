"""Whether the samples were made up, in words."""

from precision_bisect.results.result import Inputs


def made_up(inputs: Inputs | None) -> str:
    """Say that the samples were made up; "" where they were given, or nothing tells."""
    if inputs is None or not inputs.synthetic:
        return ""
    count = inputs.samples
    return (
        f"made up, {count} sample{'s' * (count != 1)}: real ones may reach ranges that these do "
        "not, and layers that overflow there are missed; give --inputs"
    )
