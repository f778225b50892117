"""What a case came to, by its exit code and what it printed."""

import re
from enum import StrEnum

from fuzz_forked import Ended


class Kind(StrEnum):
    """The first five may be; the others are errors of ours."""

    OK = "ok"
    REFUSED = "one line and exit 2"
    NO_PLAN = "exit 1, no plan or another answer"
    BUDGET = "exit 3, budget spent"
    OTHER = "exit 4 or 5, of verify"
    TRACEBACK = "traceback"
    HANG = "hang"
    SIGNAL = "signal"
    WROTE_OUTSIDE = "written outside"
    CONNECTED = "socket"
    UNCLEAR = "exit 2 without its one line, or another code"


FAULTS = (
    *(Kind.TRACEBACK, Kind.HANG, Kind.SIGNAL),
    *(Kind.WROTE_OUTSIDE, Kind.CONNECTED, Kind.UNCLEAR),
)
_CODES = {0: Kind.OK, 1: Kind.NO_PLAN, 3: Kind.BUDGET, 4: Kind.OTHER, 5: Kind.OTHER}
_TRACE = re.compile(r"^Traceback \(most recent call last\)", re.M)


def kind(ended: Ended) -> Kind:
    """Return the worst that a case shows."""
    if ended.code is None:
        return Kind.HANG
    if ended.code < 0:
        return Kind.SIGNAL
    if _TRACE.search(ended.err) or ended.code == 96:
        return Kind.TRACEBACK
    if any(note.startswith("connected") for note in ended.notes):
        return Kind.CONNECTED
    if ended.notes:
        return Kind.WROTE_OUTSIDE
    if ended.code == 2:
        said = [line for line in ended.err.splitlines() if line.startswith("precision-bisect: ")]
        return Kind.REFUSED if len(said) == 1 else Kind.UNCLEAR
    return _CODES.get(ended.code, Kind.UNCLEAR)
