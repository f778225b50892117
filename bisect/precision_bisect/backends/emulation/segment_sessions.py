"""The sessions of segments: one for all flags, and one without switches for flags that come often.

The latter takes a third of the time, and a fraction of the memory.
"""

from collections import Counter, OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.backends.emulation.fixed_edges import without_switches
from precision_bisect.backends.emulation.snippets import Flags
from precision_bisect.errors import ModelError
from precision_bisect.graphs.ort import CheckedGraph, Session
from precision_bisect.machine.free_space import trim
from precision_bisect.machine.stopping import look_at_clock

REPEATED = 12
"""Runs of a bare segment with the same flags from which they have a session of their own: it takes
as long to open as some thirty runs save. In a ranking no layer is low on more than 8 samples."""
OFF_BYTES = 2**26
"""Bytes of weights up to which each segment may have two sessions: for all flags, and for those of
every layer high, or those that come often. A limit on memory, of which these take as much again.
"""
MOST_SWITCHED, UNUSED_RUNS = 4, 16
"""Bare segments of a larger model with an open session for all flags, at most, and runs of the
model that one stays unused before another takes its place. A limit on memory: a ranking needs one
or two at a time."""
# Counted flags, a byte for each. A bound on memory.
_COUNTED = 2**10

_Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the switched graph, ready to be opened.

    `flags` are the numbers of its flags in the whole graph. `carried` are the tensors, made up to
    its end, that later segments or the caller read. `off` computes the same where no flag is on,
    in two thirds of the time (see `fixed_edges`); None where weights are large, and where it is
    `bare` (see `is_bare`).
    """

    checked: CheckedGraph
    flags: NDArray[np.int64]
    carried: frozenset[str]
    off: CheckedGraph | None
    bare: bool

    def without_switches(self, flags: _Flags) -> CheckedGraph:
        """Return what computes the same with these flags; for one that is `bare`."""
        proto = onnx.ModelProto.FromString(self.checked.text)
        names = (Flags.name(number) for number in self.flags)
        on = {name: bool(flag) for name, flag in zip(names, flags, strict=True)}
        fixed, weights = without_switches(proto, dict(self.checked.weights), on)
        return replace(self.checked, text=fixed.SerializeToString(), weights=weights)


class OpenSessions:
    """The sessions of segments, all of them open; those for no flag open when they are asked for.

    The segments are taken out one by one: each is freed before the next opens. Raises ModelError
    as Session does.
    """

    def __init__(self, segments: deque[Segment], threads: int) -> None:
        self._sessions: list[Session] = []
        self._off: list[CheckedGraph | Session | None] = []
        while segments:
            look_at_clock()
            segment = segments.popleft()
            self._sessions.append(Session(segment.checked, threads=threads))
            self._off.append(segment.off)
        self._threads = threads
        self._opening = Lock()

    def session(self, number: int, flags: _Flags) -> Session:
        """Return the session that computes a segment with these flags."""
        if flags.any() or self._off[number] is None:
            return self._sessions[number]
        with self._opening:
            off = self._off[number]
            if isinstance(off, CheckedGraph):
                # What does not open so is no loss: the other computes the same.
                with suppress(ModelError):
                    off = Session(off, threads=self._threads)
                self._off[number] = off = off if isinstance(off, Session) else None
        return off or self._sessions[number]


class BareSessions:
    """The sessions of bare segments: the latest without switches of each, for all flags of a few.

    All flags off, or all on, have the former at once, others once they are frequent, or where no
    place is free for the latter. They share the weights, which nothing copies.
    """

    def __init__(self, segments: deque[Segment], threads: int) -> None:
        self._segments = list(segments)
        self._threads = threads
        self._opening = Lock()
        self._runs = [Counter[bytes]() for _ in segments]
        self._fixed: dict[int, tuple[bytes, Session]] = {}
        # Each with the number of the latest call that has asked for it, the longest unused first.
        self._switched: OrderedDict[int, tuple[Session, int]] = OrderedDict()
        self._calls = 0
        small = all(s.checked.packs and s.checked.nbytes <= OFF_BYTES for s in segments)
        self._most_switched = len(segments) if small else MOST_SWITCHED

    def session(self, number: int, flags: _Flags) -> Session:
        """Return the session that computes a segment with these flags. Raises ModelError."""
        key = flags.tobytes()
        with self._opening:
            self._calls += 1
            if number in self._fixed and self._fixed[number][0] == key:
                return self._fixed[number][1]
            if not self._is_frequent(number, key):
                if number in self._switched:
                    return self._use(number, self._switched.pop(number)[0])
                if flags.any() and not flags.all() and self._has_place():
                    return self._use(number, self._opened(self._segments[number].checked))
            self._fixed.pop(number, None)
            session = self._opened(self._segments[number].without_switches(flags))
            self._fixed[number] = key, session
            return session

    def _use(self, number: int, session: Session) -> Session:
        self._switched[number] = session, self._calls
        return session

    def _opened(self, graph: CheckedGraph) -> Session:
        look_at_clock()
        session = Session(graph, threads=self._threads, optimised=False, packed=True)
        # Others were closed for it, and what it was opened from is not needed.
        trim()
        return session

    def _is_frequent(self, number: int, key: bytes) -> bool:
        """Count a run with these flags, anew after the latest that were frequent."""
        runs = self._runs[number]
        runs[key] += 1
        frequent = runs[key] >= REPEATED
        if frequent or len(runs) > _COUNTED:
            runs.clear()
        return frequent

    def _has_place(self) -> bool:
        """Tell whether one more session for all flags may be open; closes one long unused."""
        if len(self._switched) < self._most_switched:
            return True
        oldest, (_, used) = next(iter(self._switched.items()))
        if self._calls - used < UNUSED_RUNS * len(self._segments):
            return False
        del self._switched[oldest]
        return True
