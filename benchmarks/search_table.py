"""The search benchmark's rows as Markdown."""

from collections.abc import Sequence

import search_oracles
from search_aims import aims, information
from search_oracles import STRUCTURES
from search_rows import Row, ordered

ROUNDS_AT = (500, 20)
ROUNDS_RHO = 0.98
NOISY = ("D",)
"""Where a fresh build of an answer may fail."""

HEAD = """# Search benchmark

Written by `python benchmarks/search.py --out benchmarks/results/search.json`.

Builds asked for / size over the optimum, in D also / the share of fresh builds of the answer that
pass; means over seeds. Every distinct plan counts once; the two of the preflight (all-high,
all-low) are known and count for nobody. Rounds: our strategies but ddmin are really run with 4 and
16 workers; the others are credited with the best of their own batches, full binary speculation,
and bets that the next builds fail, or pass; means over 2 networks per cell, 1 from 2,000 layers
on, and of 5,000 layers only guided's. Forecasts are evaluations of the emulator. `log2` is log2
C(n, k), what pass/fail alone must ask to tell the sets apart; `k+1` is what a certificate takes.
Our strategies called unranked are given an emulator to which all layers are the same; singles
quickxplain forecasts every layer alone, where our own forecasts blocks from 512 layers on.
`1-min`: the share of answers of which no single layer can be dropped, tried layer by layer (by the
same builds in D and E). `true`: the share that passes without noise; `again`: of fresh builds. In
D those strategies of ours that are run with several workers stay below the tolerance by twice the
noise, as a run does; the others take what passes.
"""


def markdown(rows: Sequence[Row]) -> str:
    """Return the aims, the rounds, and for every structure what asks no emulator and what does."""
    parts = [HEAD, "## Aims\n", *(f"- {aim.line(3)}" for aim in aims(rows)), ""]
    structures = (search_oracles.__doc__ or "").split("\n\n")[-1].strip()
    parts += ["## Structures\n", structures, "", *_rounds(rows)]
    for structure in STRUCTURES:
        some = [row for row in rows if row.structure == structure]
        plain = [row for row in some if row.rho is None]
        ranked = [row for row in some if row.rho is not None]
        parts += [f"## Structure {structure}\n"] if some else []
        parts += [_unranked(plain), ""] if plain else []
        parts += [_ranked(ranked), ""] if ranked else []
    return "\n".join(parts)


def _rounds(rows: Sequence[Row]) -> list[str]:
    """Return a table of rounds by algorithm at one size, by structure."""
    some = [row for row in rows if row.cell == ROUNDS_AT and row.rho in (None, ROUNDS_RHO)]
    if not some:
        return []
    structures = [name for name in STRUCTURES if any(row.structure == name for row in some)]
    size, kept = ROUNDS_AT
    title = f"## Rounds with 1, 4 and 16 workers: n={size}, k={kept}, rho {ROUNDS_RHO}\n"
    table = [title, _cells("", *structures), _cells(*["---"] * (1 + len(structures)))]
    for name in dict.fromkeys(row.algorithm for row in ordered(some)):
        here = {row.structure: row.figures for row in some if row.algorithm == name}
        shown = (
            ", ".join(f"{rounds:.0f}" for rounds in here[structure].rounds.values())
            if structure in here
            else ""
            for structure in structures
        )
        table.append(_cells(name, *shown))
    return [*table, ""]


def _unranked(rows: Sequence[Row]) -> str:
    """Return a table of what asks no emulator: one row per size."""
    names = list(dict.fromkeys(row.algorithm for row in ordered(rows)))
    table = [_cells("n", "k", "seeds", "log2", "k+1", *names), _cells(*["---"] * (5 + len(names)))]
    for cell in sorted({row.cell for row in rows}):
        here = {row.algorithm: row for row in rows if row.cell == cell}
        seeds = max(row.seeds for row in here.values())
        bounds = f"{information(*cell):.0f}", cell[1] + 1
        table.append(_cells(*cell, seeds, *bounds, *(_both(here.get(name)) for name in names)))
    return "\n".join(table)


def _ranked(rows: Sequence[Row]) -> str:
    """Return a table of what asks the emulator: one row per size and correlation."""
    names = list(dict.fromkeys(row.algorithm for row in ordered(rows)))
    extra = ("rounds p=4, 16", "forecasts", "CPU s", "1-min", "true", "again")
    head = _cells("n", "k", "rho", *names, *(f"{names[0]}: {what}" for what in extra))
    table = [head, _cells(*["---"] * (3 + len(names) + len(extra)))]
    for cell, rho in sorted({(row.cell, -(row.rho or 0.0)) for row in rows}):
        here = {row.algorithm: row for row in rows if (row.cell, row.rho) == (cell, -rho)}
        figures = [_both(here.get(name)) for name in names]
        table.append(_cells(*cell, f"{-rho:g}", *figures, *_details(here.get(names[0]))))
    return "\n".join(table)


def _details(row: Row | None) -> tuple[str, ...]:
    if row is None:
        return ("",) * 6
    f = row.figures
    rounds = ", ".join(f"{f.rounds[p]:.1f}" for p in (4, 16) if p in f.rounds)
    shares = f"{f.minimal:.0%}", f"{f.true:.0%}", f"{f.again:.0%}"
    return (rounds, f"{f.forecasts:.0f}", f"{f.seconds:.2f}", *shares)


def _both(row: Row | None) -> str:
    if row is None:
        return ""
    both = f"{row.figures.calls:.0f} / {row.figures.ratio:.2f}"
    return f"{both} / {row.figures.again:.0%}" if row.structure in NOISY else both


def _cells(*values: object) -> str:
    return f"| {' | '.join(str(value) for value in values)} |"
