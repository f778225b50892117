"""`precision-bisect export`: the files for deployment, again, from a finished run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_bisect.errors import ExitCode, printable
from precision_bisect.exports.autocast import autocast_remark
from precision_bisect.exports.export import Export
from precision_bisect.exports.finished import Finished
from precision_bisect.exports.judging import carry_judging
from precision_bisect.exports.recheck import Check
from precision_bisect.exports.rerun import Feeds
from precision_bisect.exports.write import gains, write_gain
from precision_bisect.graphs.weights import LARGE_BYTES, total_bytes
from precision_bisect.machine.workdir import workdir
from precision_bisect.pipeline.foreign import foreign
from precision_bisect.pipeline.reopening import Reopened, reopen
from precision_bisect.runs import plain_json
from precision_bisect.runs.belonging import EXPORTED
from precision_bisect.runs.locking import RunLock
from precision_bisect.runs.results.deployment import Recheck
from precision_bisect.runs.runfolder import (
    AUTOCAST,
    FP32_MODEL,
    MIXED_MODEL,
    RunFolder,
    point_folder,
    refuse_links,
)
from precision_bisect.settings.export_points import DEPLOY, FEWEST, NEAR_MISS


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The folder that was written to, for each file why it could not be, or None, and a remark.

    `plan` says what the files hold, and where FP32 is deployed instead. `recheck` is what a fresh
    process made of the typed model, None where there is none.
    """

    folder: Path
    plan: str
    reasons: Mapping[str, str | None]
    remark: str = ""
    recheck: Recheck | None = None

    @property
    def exit_code(self) -> ExitCode:
        """What the command returns."""
        refuted = self.recheck is not None and self.recheck.refutes
        return ExitCode.BAD_EXPORT if refuted else ExitCode.OK

    def to_text(self) -> str:
        """Return one line per file, those that could not be written last, with the reason."""
        lines = [f"written to {printable(str(self.folder))}: {self.plan}"]
        recheck = self.recheck
        if recheck is not None and (recheck.refutes or recheck.crash):
            what = f"{'do not use ' * recheck.refutes}{MIXED_MODEL}"
            lines.insert(0, f"{what}: {printable(recheck.message)}")
        lines += [f"  {name}" for name, reason in self.reasons.items() if reason is None]
        missing = [(name, why) for name, why in self.reasons.items() if why is not None]
        if missing:
            lines += ["not written", *(f"  {name}: {printable(why)}" for name, why in missing)]
        lines += [f"remark: {printable(self.remark)}"] * bool(self.remark)
        return "\n".join(lines) + "\n"

    def to_json(self) -> str:
        plain: dict[str, object] = {"folder": str(self.folder), "plan": self.plan}
        plain["files"] = dict(self.reasons)
        plain["recheck"] = plain_json.plain(self.recheck)
        plain |= {"remark": self.remark} if self.remark else {}
        return json.dumps(plain, indent=2) + "\n"


def export(
    path: Path,
    plan: Path | None,
    out: Path | None,
    flags: Mapping[str, Any],
    point: str | None = None,
) -> Exported:
    """Write the exports of a finished run; return what came of each.

    `path` is the model, or the run folder alone; `plan` is a `result.json` or a run folder, None
    for that of the model's last run; `out` is the folder to write to, None for that of the result,
    or for a folder in it where the `point`, or what None comes to, is another than its files hold.
    `flags` are settings of engines by name, the others are as the run had them. Raises a
    PrecisionBisectError for bad input.
    """
    case = reopen(path, plan, flags, point)
    run = case.finished.path.parent
    refuse_links(run)
    wanted = case.finished.to_export(case.options.engine)
    where = out or (run if _holds(case.finished) else point_folder(run, case.finished.point))
    with RunLock(where, EXPORTED):
        folder = RunFolder(where)
        reasons = write_gain(folder, wanted)
        judging = carry_judging(run, folder, wanted) if gains(wanted) else {}
        instead = wanted.point == DEPLOY and case.finished.result.fp32_wins
        # Of a fused form the file that was given is deployed.
        fp32 = FP32_MODEL if wanted.needs_fp32_form else case.model.path.name
        return Exported(
            folder=folder.path,
            plan=wanted.summary() + f"; FP32 is what to deploy: {fp32}" * instead,
            reasons={**reasons, **judging},
            remark=autocast_remark(wanted) if reasons[AUTOCAST] is None else "",
            recheck=None if reasons[MIXED_MODEL] else _checked(case, folder.path, wanted, judging),
        )


def _holds(run: Finished) -> bool:
    """Whether the files in a run's folder hold the plan that is to be written, or would."""
    held = run.result.export_point
    return run.point in ((DEPLOY, FEWEST) if held in (None, NEAR_MISS) else (held,))


def _checked(
    case: Reopened, folder: Path, export: Export, judging: Mapping[str, str | None]
) -> Recheck:
    """Open and run the typed model in a fresh process, on what is stored beside it."""
    feeds = Feeds(
        stored=not any(judging.values()),
        custom_ops=export.settings.ort_custom_ops,
        known=not foreign(export.model.proto),
        large=total_bytes(export.model.weights) > LARGE_BYTES,
        by_defaults="onnxruntime" in case.options.targets,
    )
    with workdir() as work, Check(folder, work, judges=False, feeds=feeds) as check:
        return check.ended()
