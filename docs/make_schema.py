"""Make result.schema.json from the dataclass that `result.json` is written from.

python docs/make_schema.py, which lists the keys of its objects in result.md, too.
"""

import json
import textwrap
from pathlib import Path
from typing import Any

from msgspec.json import schema_components

from precision_bisect.runs.results.result import KEYS, Result

PAGE = Path(__file__).with_name("result.schema.json")
TEXT = PAGE.with_name("result.md")
OBJECTS = """\
## Objects

Each object, where it stands, and its keys. [The schema](result.schema.json) explains them.

"""
ABOUT = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "result.json of precision-bisect, version 1",
    "description": "Within a version no key is renamed or removed, and all are always there; "
    "new ones may come.",
}


def schema() -> dict[str, Any]:
    """Return the schema of the file, the parts of a result as `$defs`."""
    _, parts = schema_components(
        [Result], schema_hook=lambda _: {"type": "string"}, ref_template="#/$defs/{name}"
    )
    for part in parts.values():
        _as_written(part)
    whole = parts.pop("Result")
    found = {key: whole["properties"][key] for key in KEYS}
    return {
        **ABOUT,
        "type": "object",
        "properties": found,
        "required": list(KEYS),
        "$defs": dict(sorted(parts.items())),
    }


def _as_written(part: dict[str, Any]) -> None:
    """Have all fields of an object required: a run writes those with a default, too."""
    del part["title"]
    # Python 3.13 takes the indentation off docstrings.
    part["description"] = " ".join(part["description"].split())
    for each in part.get("properties", {}).values():
        each.pop("default", None)
    if "properties" in part:
        part["required"] = list(part["properties"])


def page() -> str:
    """Return the schema as the file has it."""
    return json.dumps(schema(), indent=1) + "\n"


def text() -> str:
    """Return result.md with the keys of each object at its end."""
    head, _, _ = TEXT.read_text(encoding="utf-8").partition("## Objects")
    whole = schema()
    owners = {"": whole, **whole["$defs"]}
    rows = []
    for name, part in whole["$defs"].items():
        reference = json.dumps(f"#/$defs/{name}")
        places = [
            f"{owner}.{key}".removeprefix(".")
            for owner, about in owners.items()
            for key, value in about.get("properties", {}).items()
            if reference in json.dumps(value)
        ]
        keys = ", ".join(f"`{key}`" for key in part.get("properties", ()))
        rows += [f"- {name} ({', '.join(places)}): {keys}"] * bool(keys)
    lines = (textwrap.fill(row, 120, subsequent_indent="  ") for row in rows)
    return f"{head}{OBJECTS}{chr(10).join(lines)}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    TEXT.write_text(text(), encoding="utf-8")
