"""What a worker elsewhere gives back for a trial, and where that goes here."""

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from precision_bisect.execution.process_evaluator import Logs, tail
from precision_bisect.machine.plain_files import whole, written
from precision_bisect.runs.runfolder import LOGS
from precision_bisect.trial import Outcome, Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The outcome of a trial, the end of the log of one without a verdict, and files to keep."""

    outcome: Outcome
    log: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotReady:
    """Why a worker takes no trials of this run."""

    why: str


class Tail(Logs):
    """Keeps the end of the last log only, for whoever sends it."""

    __slots__ = ()

    def keep(self, log: Path, proposal: Proposal, outcome: Outcome) -> Outcome:
        """Copy the end of a log, and return the outcome as it is."""
        with suppress(OSError):
            self.folder.joinpath("tail").write_bytes(tail(log))
        return outcome

    def take(self) -> bytes:
        """Return what was kept since the last call."""
        path = self.folder / "tail"
        kept = b""
        with suppress(OSError):
            kept = path.read_bytes()
            path.unlink()
        return kept


def take_files(folder: Path) -> Mapping[str, bytes]:
    """Return the files of a folder by path inside it, and remove them. Raises OSError."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        files[str(path.relative_to(folder))] = path.read_bytes()
        path.unlink()
    return files


def receive(delivery: Delivery, proposal: Proposal, folder: Path) -> Outcome:
    """Put what was delivered into the run folder, and return the outcome.

    Raises RunFolderError where a file cannot be written.
    """
    for name, data in delivery.files.items():
        with written(str(folder / name)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with whole(folder / name) as stream:
                stream.write(data)
    if not delivery.log:
        return delivery.outcome
    with tempfile.NamedTemporaryFile() as stream:
        stream.write(delivery.log)
        stream.flush()
        return Logs(folder / LOGS).keep(Path(stream.name), proposal, delivery.outcome)
