"""`precision-bisect target RUN --write DIR`: the folder that goes to the target."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from precision_bisect.backends.trtexec.trtexec_flags import raw
from precision_bisect.errors import RunFolderError, UsageError, counted, printable
from precision_bisect.exports.export import NotWritable
from precision_bisect.exports.mixed import save_mixed
from precision_bisect.machine.plain_files import whole
from precision_bisect.pipeline.on_target.exchange import (
    INPUTS,
    MANIFEST,
    SCRIPT,
    Subject,
    typed_point,
)
from precision_bisect.pipeline.on_target.shell_script import input_file, write_script
from precision_bisect.runs import plain_json
from precision_bisect.runs.runfolder import RunFolder, folder_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The folder, the points in it, and how many samples it has."""

    folder: Path
    points: Sequence[str]
    samples: int

    def to_text(self) -> str:
        """Return what it holds and what to do with it, in two lines."""
        holds = f"{counted(len(self.points), 'plan')} ({', '.join(self.points)})"
        return (
            printable(f"{self.folder}: {holds}, {counted(self.samples, 'sample')}")
            + f"\nCopy it to the target, call sh {SCRIPT} in it, copy it back, then --read it.\n"
        )

    def to_json(self) -> str:
        plain = {"folder": str(self.folder), "points": self.points, "samples": self.samples}
        return plain_json.dumps(plain, indent=2) + "\n"


def write_target(subject: Subject, where: Path) -> Written:
    """Write the folder of a run.

    Raises UsageError for a folder that holds something, and for a plan that no model can say, and
    RunFolderError where it cannot be written.
    """
    try:
        if any(where.iterdir()):
            raise UsageError(f"{where} is not empty", "name a new folder by --write")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RunFolderError(
            f"cannot look into {where}: {error.strerror}", "name another folder by --write"
        ) from error
    folder = RunFolder(where)
    try:
        script = write_script(subject)
        for name, export in subject.points.items():
            save_mixed(RunFolder(where / name), typed_point(subject, export))
    except NotWritable as why:
        raise UsageError(f"the folder cannot be written: {why}", "see --help of target") from why
    _write_inputs(subject, where)
    folder.write(SCRIPT, script)
    # Last, so that a folder that has it is complete.
    folder.write(MANIFEST, plain_json.dumps(subject.manifest, indent=2) + "\n")
    return Written(folder=where, points=tuple(subject.points), samples=len(subject.inputs))


def _write_inputs(subject: Subject, where: Path) -> None:
    """Write the arrays as trtexec loads them."""
    RunFolder(where / INPUTS)
    for sample, feed in enumerate(subject.inputs):
        for number, spec in enumerate(subject.model.inputs):
            path = where / input_file(sample, number)
            with folder_errors(path), whole(path) as stream:
                stream.write(raw(feed[spec.name]))
