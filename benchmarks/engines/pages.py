"""Pages of docs/engines, made of the data beside them."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "engines"
Data = Mapping[str, Any]


def today() -> str:
    """Return the date that a table is of."""
    return datetime.now(UTC).date().isoformat()


def write(name: str, data: Data, page: str) -> None:
    """Write a table's data and its page, and say so."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(as_json(data), encoding="utf-8")
    (FOLDER / f"{name}.md").write_text(page, encoding="utf-8")
    print(f"docs/engines/{name}.md is written", file=sys.stderr)


def read(name: str) -> Data:
    """Return a table's data."""
    data: Data = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return data


def as_json(data: Data) -> str:
    """Return data as JSON, with each entry of an object or a list of it in a line of its own."""
    fields = []
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            lines = [f"  {json.dumps(key)}: {json.dumps(row)}" for key, row in value.items()]
            fields.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
        elif isinstance(value, list) and value:
            lines = [f"  {json.dumps(row)}" for row in value]
            fields.append(f" {json.dumps(name)}: [\n" + ",\n".join(lines) + "\n ]")
        else:
            fields.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(fields) + "\n}\n"


def heading(title: str, data: Data, module: str) -> list[str]:
    """Return the title, and the line that says of what, when and by which command."""
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    return [
        f"# {title}",
        "",
        f"Generated on {data['date']} by `python -m engines.{module}` in `benchmarks/`:"
        f" {versions}.",
        "",
    ]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    cells = ([" ".join(cell.replace("|", "/").split()) for cell in row] for row in rows)
    return [*lines, *("| " + " | ".join(row) + " |" for row in cells), ""]


def short(verdict: str) -> str:
    """Return a verdict without its reason."""
    return verdict.partition(":")[0]


def counts(what: str, tools: Sequence[str], operators: Data, columns: Data) -> list[str]:
    """Return a table: of how many operators each tool's verdict begins with a column's text."""

    def count(tool: str, text: str) -> int:
        verdicts = (short(row.get(tool, "")) for row in operators.values())
        return sum(verdict.startswith(text) for verdict in verdicts)

    rows = ((tool, *(str(count(tool, text)) for text in columns.values())) for tool in tools)
    return table((what, *columns), rows)


def exceptions(title: str, tools: Sequence[str], operators: Data, usual: str) -> list[str]:
    """Return a chapter: the operators of which some tool's verdict is not the usual one."""
    rows = (
        (name, *(short(row.get(tool, "-")) for tool in tools))
        for name, row in operators.items()
        if any(row.get(tool) != usual for tool in tools)
    )
    return [f"## {title}", "", *table(("operator", *tools), rows)]
