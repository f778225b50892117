"""What child processes printed during trials without a verdict."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from precision_bisect.runs.belonging import new_log
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
            path = new_log(self.folder, outcome.status.value)
            heading = (
                f"{outcome.status}: {outcome.message}\n{proposal.phase}, {proposal.kind}, "
                f"{proposal.samples} samples, plan {proposal.plan.key}: {proposal.reason}\n\n"
            )
            path.write_bytes(heading.encode() + end)
        except OSError:
            return outcome
        said = f"{outcome.message}; what it printed is in {self.folder.name}/{path.name}"
        return replace(outcome, message=said)


def tail(log: Path) -> bytes:
    """Return the end of a log. Raises OSError."""
    with log.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - TAIL_BYTES))
        # A child that wrote on after its log was emptied leaves NULs in front: its offset stayed.
        return stream.read().strip(b"\0")
