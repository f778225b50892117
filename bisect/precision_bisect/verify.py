"""`precision-bisect verify`: build a found plan once and say what the engine made of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_bisect.backends.choose import Builder, choose_builder
from precision_bisect.engine_settings import EngineSettings
from precision_bisect.errors import ExitCode, printable
from precision_bisect.evidence import Evidence, Honour
from precision_bisect.finished import Finished, read_finished
from precision_bisect.model.load import load_model
from precision_bisect.ort import use_custom_ops
from precision_bisect.plan import Plan
from precision_bisect.protocols import BackendFailure
from precision_bisect.runfolder import default_run_folder
from precision_bisect.typed.rewrite import TypedWriter
from precision_bisect.workdir import workdir

_WORDS = {
    Honour.HONOURED: "honoured",
    Honour.DEMOTED: "DEMOTED",
    Honour.NOT_OBSERVABLE: "not observable",
}
_MOST_LISTED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What one build of a plan showed; `failure` is the builder's own word where it failed."""

    backend: str
    remark: str
    kept: Sequence[str]
    evidence: Evidence
    failure: str | None

    @property
    def exit_code(self) -> ExitCode:
        """0 where no kept layer is demoted, 1 where one is or the build fails."""
        wrong = self.failure is not None or self.evidence.demoted
        return ExitCode.NO_PLAN if wrong else ExitCode.OK

    def to_json(self) -> str:
        """Return the verification as JSON."""
        plain: dict[str, Any] = {
            "backend": self.backend,
            "honoured": self.evidence.honoured,
            "layers": [
                {"layer": h.layer, "honoured": h.honour.value, "evidence": h.evidence}
                for h in self.evidence.honours
            ],
            "notes": list(self.evidence.notes),
            "listed": {each.note: list(each.names) for each in self.evidence.listed},
            "failure": self.failure,
        }
        return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"

    def to_text(self) -> str:
        """Return one line per kept layer, the remarks, and a count."""
        lines = [f"{self.backend}: {self.remark}" if self.remark else self.backend]
        if self.failure is not None:
            return "\n".join([*lines, f"  the build failed: {printable(self.failure)}"]) + "\n"
        width = max((len(printable(entry.layer)) for entry in self.evidence.honours), default=0)
        for entry in self.evidence.honours:
            name = printable(entry.layer)
            word = _WORDS[entry.honour]
            lines.append(f"  {name:<{width}}  {word:<14}  {printable(entry.evidence)}")
        lines += [f"  note: {printable(note)}{self._listed(note)}" for note in self.evidence.notes]
        counts = [
            f"{sum(entry.honour is honour for entry in self.evidence.honours)} {word.lower()}"
            for honour, word in _WORDS.items()
        ]
        lines.append(f"{len(self.kept)} kept: {', '.join(counts)}")
        return "\n".join(lines) + "\n"

    def _listed(self, note: str) -> str:
        """Return the first names that the builder gave with a remark."""
        names = [name for each in self.evidence.listed if each.note == note for name in each.names]
        more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
        return f": {printable(', '.join(names[:_MOST_LISTED]))}{more}" if names else ""


def verify(
    path: Path, plan_path: Path | None, backend: str, settings: EngineSettings
) -> Verification:
    """Build the plan of a finished run once and look into the engine.

    Raises a PrecisionBisectError for bad input, and where nothing here can build engines. A build
    that fails is a finding, not an error.
    """
    use_custom_ops(settings.ort_custom_ops)
    model = load_model(path)
    finished = read_finished(plan_path or default_run_folder(path), model)
    writer = TypedWriter(finished.settled(model), finished.pair, finished.scales())
    builder = choose_builder(backend, settings, finished.pair.low)
    with workdir() as work:
        evidence, failure = _build(builder, writer, finished, work)
    return Verification(
        backend=builder.name,
        remark=builder.remark,
        kept=[*finished.fixed, *finished.kept],
        evidence=evidence,
        failure=failure,
    )


def _build(
    builder: Builder, writer: TypedWriter, finished: Finished, work: Path
) -> tuple[Evidence, str | None]:
    names, kept = writer.model.table.names, frozenset(finished.kept)
    plan = Plan.of(i for i, name in enumerate(names) if name in kept)
    try:
        with builder.make(writer, finished.shapes, work).build(plan) as engine:
            return engine.evidence(), None
    except BackendFailure as failure:
        return Evidence(), failure.outcome.message
