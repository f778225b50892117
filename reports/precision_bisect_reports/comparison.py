"""What changed between two runs, in 80 columns.

Layer names are untrusted: they are shown as literal, printable text.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from precision_bisect.errors import printable
from precision_bisect.layer_table import scope_of
from precision_bisect.runs.comparing.changes import Change, Comparison, Side
from precision_bisect_reports.promise import certified
from precision_bisect_reports.summary import WIDTH

MOST_SHOWN = 60
"""Most layers, and most fields, that are listed; `--json` has all."""

_LONGEST = 40
_HASH = 12
"""Longest values of a fingerprint that are shown, and longest words, such as hashes."""


def write_comparison(found: Comparison, out: TextIO) -> None:
    console = Console(file=out, width=WIDTH, highlight=False)
    for part in _parts(found):
        console.print(part)


def _parts(found: Comparison) -> Iterator[RenderableType]:
    yield Text("")
    yield _headline(found)
    yield _figures(found.before, found.after)
    yield from _layers(found)
    yield from _changes("Kept in another type", found.retyped)
    yield from _changes("Other causes", found.causes)
    if found.depends:
        rows = [(each.key, _short(each.before), _short(each.after)) for each in found.depends]
        yield from _section("Depends on", _table(rows[:MOST_SHOWN]))
        yield from _more(len(rows))
    if found.only_before is not None:
        yield Text("")
        yield Text(_models(found))


def _headline(found: Comparison) -> Text:
    count = f"{len(found.common)} layers are" if len(found.common) != 1 else "1 layer is"
    if not found.before.saved.answered and not found.after.saved.answered:
        return Text("Neither run has an answer", style="bold yellow")
    if found.same:
        which = f"The same {count} kept" if found.common else "Nothing is kept, before and after"
        return Text(which, style="bold green")
    if found.before.saved.answered != found.after.saved.answered:
        side = "after" if found.before.saved.answered else "before"
        return Text(f"The run {side} has no answer", style="bold yellow")
    parts = [f"{len(found.added)} added", f"{len(found.removed)} removed"]
    if found.retyped:
        parts.append(f"{len(found.retyped)} in another type")
    return Text(f"Kept: {', '.join(parts)}; {count} kept in both", style="bold yellow")


def _figures(before: Side, after: Side) -> Table:
    values = list(zip(_told(before), _told(after), strict=True))
    rows = [(label, old, new) for (label, old), (_, new) in values if old or new]
    return _table([("", "before", "after"), *rows])


def _told(side: Side) -> Iterator[tuple[str, str]]:
    """Yield what there is to say of one run, "" where there is nothing; the labels are fixed."""
    told = side.to_json()
    limit = told["tolerance"]
    yield "run", printable(str(side.saved.path))
    yield "status", told["status"].replace("_", " ")
    yield "backend", printable(told["backend"])
    yield "types", f"{told['low']} and {told['high']}"
    yield "kept", f"{told['kept']} of {told['candidates']}" if told["answered"] else "no answer"
    yield "error", _figure(told["error"])
    yield "tolerance", "1, as a multiple of limits" if isinstance(limit, dict) else _figure(limit)
    yield "certificate", certified(side.saved.result.certificate) * bool(told["kept"])
    yield "trials", str(told["trials"])
    yield "builds", str(told["builds"] or "")
    yield "seconds", f"{side.saved.result.wall_s:.0f}"
    yield "latency, ms", _figure(told["latency_ms"])


def _layers(found: Comparison) -> Iterator[RenderableType]:
    """Yield what was added and removed, by module."""
    changed = [("+", name) for name in found.added] + [("-", name) for name in found.removed]
    causes = {**found.before.causes, **found.after.causes}
    modules = {**(found.before.layers or {}), **(found.after.layers or {})}

    def module_of(each: tuple[str, str]) -> str:
        return modules.get(each[1], scope_of(each[1]))

    for module, group in groupby(sorted(changed[:MOST_SHOWN], key=module_of), key=module_of):
        rows = []
        for sign, name in group:
            leaf = name.rpartition("/")[2]
            foreign = "not in the other model" if found.is_foreign(name) else ""
            rows.append((f"  {sign} {printable(leaf)}", printable(causes.get(name, "")), foreign))
        yield from _section(printable(module) or "(top level)", _table(rows))
    yield from _more(len(changed))


def _changes(title: str, changes: Sequence[Change]) -> Iterator[RenderableType]:
    if changes:
        rows = [tuple(map(printable, (each.layer, each.before, each.after))) for each in changes]
        yield from _section(title, _table(rows[:MOST_SHOWN]))
        yield from _more(len(rows))


def _models(found: Comparison) -> str:
    if not found.only_before and not found.only_after:
        return "Both models have layers of the same names."
    return (
        f"Layers by name: {found.only_before} in the model before only, "
        f"{found.only_after} in the model after only."
    )


def _section(title: str, table: Table) -> Iterator[RenderableType]:
    yield Text("")
    yield Text(title, style="bold")
    yield table


def _more(count: int) -> Iterator[RenderableType]:
    if count > MOST_SHOWN:
        yield Text(f"  … and {count - MOST_SHOWN} more, see --json")


def _table(rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 0, 0, 2), pad_edge=True)
    for _ in rows[0] if rows else ():
        table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else str(value or "")


def _short(value: Any) -> str:
    text = "absent" if value is None else printable(str(value))
    longest = _LONGEST if " " in text else _HASH
    return text if len(text) <= longest else f"{text[:longest]}…"
