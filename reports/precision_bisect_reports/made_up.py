"""Whether the samples were made up, in words."""

from collections.abc import Mapping
from typing import Any


def made_up(inputs: Mapping[str, Any] | None) -> str:
    """Say that the samples were made up; "" where they were given, or nothing tells."""
    if not inputs or not inputs.get("synthetic"):
        return ""
    count = int(inputs["samples"])
    return (
        f"made up, {count} sample{'s' * (count != 1)}: real ones may reach ranges that these do "
        "not, and layers that overflow there are missed; give --inputs"
    )
