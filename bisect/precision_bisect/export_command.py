"""`precision-bisect export`: the files for deployment, again, from a finished run."""

from collections.abc import Mapping
from pathlib import Path

from precision_bisect.engine_settings import EngineSettings
from precision_bisect.errors import printable
from precision_bisect.exports.export import Export
from precision_bisect.exports.write import write_exports
from precision_bisect.finished import read_finished
from precision_bisect.model.load import load_model
from precision_bisect.runfolder import RunFolder, default_run_folder


def export(path: Path, plan: Path | None, out: Path | None, settings: EngineSettings) -> str:
    """Write the exports of a finished run of the model at `path`; return what to tell the user.

    `plan` is a `result.json` or a run folder, None for the default one of the model; `out` is the
    folder to write to, None for that of the result. Raises a PrecisionBisectError for bad input.
    """
    model = load_model(path)
    finished = read_finished(plan or default_run_folder(path), model)
    folder = RunFolder(out or finished.path.parent)
    wanted = Export(
        model=finished.settled(model),
        kept=finished.kept,
        pair=finished.pair,
        settings=settings,
        scales=finished.scales(),
    )
    return _told(folder.path, write_exports(folder, wanted))


def _told(folder: Path, reasons: Mapping[str, str | None]) -> str:
    """Return one line per file, those that could not be written last, each with its reason."""
    lines = [f"written to {printable(str(folder))}"]
    lines += [f"  {name}" for name, reason in reasons.items() if reason is None]
    missing = [(name, reason) for name, reason in reasons.items() if reason is not None]
    if missing:
        lines += ["not written", *(f"  {name}: {printable(reason)}" for name, reason in missing)]
    return "\n".join(lines) + "\n"
