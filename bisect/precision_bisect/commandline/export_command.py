"""`precision-bisect export`: the files for deployment, again, from a finished run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from precision_bisect.errors import printable
from precision_bisect.exports.finished import read_finished
from precision_bisect.exports.judging import carry_judging
from precision_bisect.exports.write import gains, write_gain
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.ort import use_custom_ops
from precision_bisect.options import ANSWER
from precision_bisect.pipeline.verifying.verify import interface_as_in_run, model_and_result
from precision_bisect.runs.belonging import EXPORTED
from precision_bisect.runs.locking import RunLock
from precision_bisect.runs.runfolder import RunFolder, point_folder, refuse_links
from precision_bisect.settings.engine_settings import EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The folder that was written to, and for each file why it could not be, or None."""

    folder: Path
    reasons: Mapping[str, str | None]

    def to_text(self) -> str:
        """Return one line per file, those that could not be written last, with the reason."""
        lines = [f"written to {printable(str(self.folder))}"]
        lines += [f"  {name}" for name, reason in self.reasons.items() if reason is None]
        missing = [(name, why) for name, why in self.reasons.items() if why is not None]
        if missing:
            lines += ["not written", *(f"  {name}: {printable(why)}" for name, why in missing)]
        return "\n".join(lines) + "\n"

    def to_json(self) -> str:
        plain = {"folder": str(self.folder), "files": dict(self.reasons)}
        return json.dumps(plain, indent=2) + "\n"


def export(
    path: Path,
    plan: Path | None,
    out: Path | None,
    settings: EngineSettings,
    point: str = ANSWER,
) -> Exported:
    """Write the exports of a finished run; return what came of each.

    `path` is the model, or the run folder alone; `plan` is a `result.json` or a run folder, None
    for that of the model's last run; `out` is the
    folder to write to, None for that of the result, or for a folder in it where the `point` of the
    curve is another than the answer. Raises a PrecisionBisectError for bad input.
    """
    use_custom_ops(settings.ort_custom_ops)
    model_path, result = model_and_result(path, plan)
    model = load_model(model_path)
    finished = read_finished(result, model, point)
    run = finished.path.parent
    refuse_links(run)
    wanted = finished.to_export(model, interface_as_in_run(finished, settings), point)
    where = out or (run if point == ANSWER else point_folder(run, point))
    with RunLock(where, EXPORTED):
        folder = RunFolder(where)
        reasons = write_gain(folder, wanted)
        judging = carry_judging(run, folder, wanted) if gains(wanted) else {}
        return Exported(folder=folder.path, reasons={**reasons, **judging})
