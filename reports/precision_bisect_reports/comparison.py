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
# Longest values of a fingerprint that are shown, and longest words, such as hashes.
_HASH = 12


def write_comparison(comparison: Comparison, out: TextIO) -> None:
    console = Console(file=out, width=WIDTH, highlight=False)
    for part in _parts(comparison):
        console.print(part)


def _parts(comparison: Comparison) -> Iterator[RenderableType]:
    yield Text("")
    yield _headline(comparison)
    yield _figures(comparison.before, comparison.after)
    yield from _layers(comparison)
    yield from _changes("Kept in another type", comparison.retyped)
    yield from _changes("Other causes", comparison.causes)
    if comparison.depends:
        rows = [
            (difference.key, _short(difference.before), _short(difference.after))
            for difference in comparison.depends
        ]
        yield from _section("Depends on", _table(rows[:MOST_SHOWN]))
        yield from _more(len(rows))
    if comparison.only_before is not None:
        yield Text("")
        yield Text(_models(comparison))


def _headline(comparison: Comparison) -> Text:
    count = f"{len(comparison.common)} layers are" if len(comparison.common) != 1 else "1 layer is"
    if not comparison.before.saved.answered and not comparison.after.saved.answered:
        return Text("Neither run has an answer", style="bold yellow")
    if comparison.same:
        which = (
            f"The same {count} kept" if comparison.common else "Nothing is kept, before and after"
        )
        return Text(which, style="bold green")
    if comparison.before.saved.answered != comparison.after.saved.answered:
        side = "after" if comparison.before.saved.answered else "before"
        return Text(f"The run {side} has no answer", style="bold yellow")
    parts = [f"{len(comparison.added)} added", f"{len(comparison.removed)} removed"]
    if comparison.retyped:
        parts.append(f"{len(comparison.retyped)} in another type")
    return Text(f"Kept: {', '.join(parts)}; {count} kept in both", style="bold yellow")


def _figures(before: Side, after: Side) -> Table:
    values = list(zip(told_of(before), told_of(after), strict=True))
    rows = [(label, old, new) for (label, old), (_, new) in values if old or new]
    return _table([("", "before", "after"), *rows])


def told_of(side: Side) -> Iterator[tuple[str, str]]:
    """Yield what there is to say of one run, "" where there is nothing; the labels are fixed."""
    fields = side.to_json()
    limit = fields["tolerance"]
    yield "run", printable(str(side.saved.path))
    yield "status", fields["status"].replace("_", " ") + ", cut short" * fields["cut_short"]
    yield "backend", printable(fields["backend"])
    yield "types", f"{fields['low']} and {fields['high']}"
    yield (
        "kept",
        f"{fields['kept']} of {fields['candidates']}" if fields["answered"] else "no answer",
    )
    yield "to deploy", side.saved.result.to_deploy
    yield "error", _figure(fields["error"])
    yield "tolerance", "1, as a multiple of limits" if isinstance(limit, dict) else _figure(limit)
    yield "certificate", certified(side.saved.result) * bool(fields["kept"])
    yield "trials", str(fields["trials"])
    yield "builds", str(fields["builds"] or "")
    yield "seconds", f"{side.saved.result.wall_s:.0f}"
    yield "latency, ms", _figure(fields["latency_ms"])


def _layers(comparison: Comparison) -> Iterator[RenderableType]:
    """Yield what was added and removed, by module."""
    changed = [("+", name) for name in comparison.added] + [
        ("-", name) for name in comparison.removed
    ]
    causes = {**comparison.before.causes, **comparison.after.causes}
    # A layer may be in one of the models alone.
    modules = {**(comparison.before.layers or {}), **(comparison.after.layers or {})}

    def module_of(change: tuple[str, str]) -> str:
        return modules.get(change[1], scope_of(change[1]))

    for module, group in groupby(sorted(changed[:MOST_SHOWN], key=module_of), key=module_of):
        rows = []
        for sign, name in group:
            leaf = name.rpartition("/")[2]
            foreign = "not in the other model" if comparison.is_foreign(name) else ""
            rows.append((f"  {sign} {printable(leaf)}", printable(causes.get(name, "")), foreign))
        yield from _section(printable(module) or "(top level)", _table(rows))
    yield from _more(len(changed))


def _changes(title: str, changes: Sequence[Change]) -> Iterator[RenderableType]:
    if changes:
        rows = [
            tuple(map(printable, (change.layer, change.before, change.after)))
            for change in changes
        ]
        yield from _section(title, _table(rows[:MOST_SHOWN]))
        yield from _more(len(rows))


def _models(comparison: Comparison) -> str:
    if not comparison.only_before and not comparison.only_after:
        return "Both models have layers of the same names."
    return (
        f"Layers by name: {comparison.only_before} in the model before only, "
        f"{comparison.only_after} in the model after only."
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
