"""What child processes printed during trials without a verdict."""

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from precision_bisect.trial import Outcome, Proposal

TAIL_BYTES = 256 * 1024
"""Bytes of the end of a log that are kept: the last words tell most. A bound."""


@dataclass(frozen=True, slots=True)
class Logs:
    """Keeps logs in a folder, which is made for the first; a full disk costs only the log."""

    folder: Path

    def keep(self, log: Path, proposal: Proposal, outcome: Outcome) -> Outcome:
        """Copy the end of a log, and return the outcome with a message that names the copy."""
        try:
            end = tail(log)
            if not end:
                return outcome
            self.folder.mkdir(exist_ok=True)
            path = self._new(outcome.status.value)
            heading = (
                f"{outcome.status}: {outcome.message}\n{proposal.phase}, {proposal.kind}, "
                f"{proposal.samples} samples, plan {proposal.plan.key}: {proposal.reason}\n\n"
            )
            path.write_bytes(heading.encode() + end)
        except OSError:
            return outcome
        said = f"{outcome.message}; what it printed is in {self.folder.name}/{path.name}"
        return replace(outcome, message=said)

    def _new(self, status: str) -> Path:
        """Make an empty file with the next number that is free."""
        taken = [int(path.name[:6]) for path in self.folder.glob("[0-9]" * 6 + "-*.log")]
        number = max(taken, default=0)
        while True:
            number += 1
            path = self.folder / f"{number:06}-{status}.log"
            with suppress(FileExistsError):
                # O_EXCL: two workers may look for a free number at the same time.
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
                return path


def tail(log: Path) -> bytes:
    """Return the end of a log. Raises OSError."""
    with log.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - TAIL_BYTES))
        # A child that wrote on after its log was emptied leaves NULs in front: its offset stayed.
        return stream.read().strip(b"\0")
