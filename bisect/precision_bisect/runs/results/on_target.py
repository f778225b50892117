"""How the plans of a run did on a machine without this tool: a table, and `target.json`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from precision_bisect.errors import ExitCode, counted, printable
from precision_bisect.options import ANSWER
from precision_bisect.runs import plain_json
from precision_bisect.runs.runfolder import TARGET
from precision_bisect.runs.typed_json import Count, read_typed
from precision_bisect.trial import Figure, Honour, LayerHonour

_TITLES = ("", "holds", "error", "latency", "honoured", "engine")
_NOTHING = "-"
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class PointOnTarget:
    """What came back of one plan, and the verdict on it.

    `kept` counts its layers; of `samples` so many have outputs that could be read. `passed` and
    `error` are over these, as the run judges; None where there is none. `latency_ms` is the
    median of trtexec's compute times. `layers` are the kept ones as the engine shows them.
    `lacks` says in sentences what is missing or damaged.
    """

    point: str
    kept: Count
    samples: Count
    passed: bool | None = None
    error: Figure | None = None
    message: str = ""
    latency_ms: Figure | None = None
    engine_bytes: Count | None = None
    layers: Sequence[LayerHonour] = ()
    lacks: Sequence[str] = ()

    def holds(self, samples: int) -> bool:
        """Whether it passes on so many samples, which are all."""
        return self.passed is True and self.samples >= samples

    def cells(self, samples: int) -> tuple[str, ...]:
        """Return what a table says of it, a text per column."""
        holds = _NOTHING if self.passed is None else "yes" if self.passed else "NO"
        if self.passed is not None and self.samples < samples:
            holds += f", on {self.samples} of {samples}"
        seen = Counter(each.honoured for each in self.layers)
        words = {Honour.DEMOTED: "DEMOTED", Honour.NOT_OBSERVABLE: "not observable"}
        others = [f"{seen[honour]} {word}" for honour, word in words.items() if seen[honour]]
        size = None if self.engine_bytes is None else self.engine_bytes / _MIB
        return (
            self.point,
            holds,
            _NOTHING if self.error is None else f"{self.error:.3g}",
            _NOTHING if self.latency_ms is None else f"{self.latency_ms:.3g} ms",
            ", ".join([str(seen[Honour.HONOURED]), *others]) if self.layers else _NOTHING,
            _NOTHING if size is None else f"{size:.3g} MiB",
        )

    def line(self, samples: int) -> str:
        """Return the cells behind the name on one line, as far as there are any."""
        named = zip(_TITLES[1:], self.cells(samples)[1:], strict=True)
        return ", ".join(f"{title} {text}" for title, text in named if text != _NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnTarget:
    """What came back of a run's plans: the contents of `target.json`, version 1.

    `kept` has the layers of the answer that was judged.
    """

    schema: Literal[1] = 1
    samples: Count
    kept: Sequence[str]
    points: Sequence[PointOnTarget]

    @property
    def answer(self) -> PointOnTarget | None:
        return next((each for each in self.points if each.point == ANSWER), None)

    @property
    def exit_code(self) -> ExitCode:
        """0 only where the answer passes on all samples."""
        held = self.answer is not None and self.answer.holds(self.samples)
        return ExitCode.OK if held else ExitCode.NO_PLAN

    @property
    def verdict(self) -> str:
        """What the answer is worth on the target, in one line."""
        found, every = self.answer, counted(self.samples, "sample")
        if found is None or found.passed is None:
            return "Not judged: no outputs of the answer have come back"
        if not found.passed:
            return "Fails: the answer is not within the limits on the target"
        if found.samples < self.samples:
            return f"Not judged whole: it holds on {found.samples} of {every}"
        return f"Holds: the answer is within the limits on the target, {every}"

    def to_json(self) -> str:
        return plain_json.dumps(self, indent=2) + "\n"

    def to_text(self) -> str:
        """Return the verdict, a table with a line per plan, and what lacks."""
        rows = [_TITLES, *(each.cells(self.samples) for each in self.points)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [self.verdict]
        for row in rows:
            cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
            lines.append(f"  {'  '.join(cells)}".rstrip())
        for each in self.points:
            lines += [f"  {each.point}: {printable(lack)}" for lack in each.lacks]
            lines += [
                f"  {each.point}: {printable(entry.layer)} is DEMOTED: {printable(entry.evidence)}"
                for entry in each.layers
                if entry.honoured is Honour.DEMOTED
            ]
        return "".join(f"{line}\n" for line in lines)


def read_on_target(folder: Path) -> OnTarget | None:
    """Return what `target --read` has left in a run folder, None where that is nothing."""
    try:
        return read_typed(OnTarget, folder / TARGET)
    except (OSError, ValueError):
        return None
