"""The rows on real networks as Markdown, and what they say of the guided search."""

from collections.abc import Iterator, Sequence

from search_aims import GUIDED, checked, fewer, in_rounds
from search_rows import Row, ordered

HEAD = """# Search on real networks

Written by `python benchmarks/search_networks.py --out benchmarks/results/search_networks.json`.

The emulator is the engine, and the searches are not told: builds judge all inputs, forecasts one
in three of them. Sizes are kept layers; no one knows the optimum, `best` is the smallest set that
any search found. A search is cut off after 1,500 builds (`>`), and its figures are then those of
the smallest plan that had passed. `answer`: builds until a plan of the final size had passed.
`1-min`: no single kept layer can be dropped, tried layer by layer. Rounds as in `search.md`.
`rho`: Spearman correlation of the single layers' forecasts and errors.
"""


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line per aim, as for the simulated networks."""
    guided = [row for row in rows if row.algorithm == GUIDED]
    for name, compare in (
        ("(b) a fifth fewer builds than the best peer", fewer(0.8)),
        ("(d) no peer with as small a set takes fewer builds", fewer(1.0)),
        ("(f) 4 workers: at most 60% of the rounds", in_rounds(4, 0.6)),
        ("(f) 16 workers: at most 40% of the rounds", in_rounds(16, 0.4)),
    ):
        yield checked(name, guided, rows, compare).line(3)
    for row in ordered(guided):
        smallest = min(r.figures.ratio for r in rows if r.structure == row.structure)
        yield (
            f"{row.structure}: {row.figures.ratio:.0f} layers (best {smallest:.0f}) in "
            f"{row.figures.calls:.0f} builds, k+1 = {row.figures.ratio + 1:.0f}"
        )


def markdown(rows: Sequence[Row]) -> str:
    """Return the summary and one table per case."""
    parts = [HEAD, "## Aims\n", *(f"- {line}" for line in summary(rows)), ""]
    for case in dict.fromkeys(row.structure for row in ordered(rows)):
        parts += [*_table([row for row in ordered(rows) if row.structure == case]), ""]
    return "\n".join(parts)


def _table(rows: Sequence[Row]) -> Iterator[str]:
    best = min(row.figures.ratio for row in rows)
    rho = next((f", rho {row.rho}" for row in rows if row.rho is not None), "")
    yield f"## {rows[0].structure}\n"
    yield f"{rows[0].size} layers, best {best:.0f}{rho}\n"
    columns = ("search", "kept", "builds", "answer", "1-min", "rounds p=4, 16", "forecasts")
    yield f"| {' | '.join((*columns, 'CPU s'))} |"
    yield "|---" + "|---:" * len(columns) + "|"
    for row in sorted(rows, key=lambda row: (row.figures.ratio, row.figures.calls)):
        f = row.figures
        rounds = ", ".join(
            f"{f.rounds[workers]:.0f}" for workers in (4, 16) if workers in f.rounds
        )
        yield (
            f"| {row.algorithm} | {f.ratio:.0f} | {'>' if f.cut else ''}{f.calls:.0f} | "
            f"{f.answer:.0f} | {'yes' if f.minimal else 'no'} | {rounds} | {f.forecasts:.0f} | "
            f"{f.seconds:.2f} |"
        )
