"""Make the schemas of `result.json` and `diagnosis.json` from what they are written from.

python docs/make_schema.py, which lists the keys of a result's objects in result.md, too.
"""

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.json import schema_components

from precision_bisect.explaining.diagnosis.findings import Findings
from precision_bisect.runs.results.result import KEYS, Result

DOCS = Path(__file__).parent
TEXT = DOCS / "result.md"
OBJECTS = """\
## Objects

Each object, where it stands, and its keys. [The schema](result.schema.json) explains them.

"""
DIALECT = "https://json-schema.org/draft/2020-12/schema"
PROMISE = (
    "Within a version no key is renamed or removed, and all are always there; new ones may come."
)


def schema(written: type, file: str) -> dict[str, Any]:
    """Return the schema of a file that is written from a dataclass, the parts of it as `$defs`."""
    _, parts = schema_components(
        [written], schema_hook=lambda _: {"type": "string"}, ref_template="#/$defs/{name}"
    )
    for part in parts.values():
        _as_written(part)
    properties = parts.pop(written.__name__)["properties"]
    keys = KEYS if written is Result else tuple(properties)
    return {
        "$schema": DIALECT,
        "title": f"{file} of precision-bisect, version 1",
        "description": PROMISE,
        "type": "object",
        "properties": {key: properties[key] for key in keys},
        "required": list(keys),
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


def pages() -> dict[str, str]:
    """Return the files beside this one by their names."""
    files = {"result": Result, "diagnosis": Findings}
    schemas = {name: schema(written, f"{name}.json") for name, written in files.items()}
    return {
        TEXT.name: text(schemas["result"]),
        **{
            f"{name}.schema.json": f"{json.dumps(made, indent=1)}\n"
            for name, made in schemas.items()
        },
    }


def text(whole: Mapping[str, Any]) -> str:
    """Return result.md with the keys of each object at its end."""
    head, _, _ = TEXT.read_text(encoding="utf-8").partition("## Objects")
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
    for name, content in pages().items():
        DOCS.joinpath(name).write_text(content, encoding="utf-8")
