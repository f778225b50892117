"""Make the schemas of `result.json` and `diagnosis.json` from what they are written from.

python docs/make_schema.py
"""

import json
from pathlib import Path
from typing import Any

from msgspec.json import schema_components

from precision_bisect.explaining.diagnosis.findings import Findings
from precision_bisect.runs.results.result import KEYS, Result

DOCS = Path(__file__).parent
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
    return {
        f"{name}.schema.json": f"{json.dumps(schema(written, f'{name}.json'), indent=1)}\n"
        for name, written in files.items()
    }


if __name__ == "__main__":
    for name, content in pages().items():
        DOCS.joinpath(name).write_text(content, encoding="utf-8")
