"""The switched graph run in segments: a plan computes only what follows its first other switch.

What crosses a cut depends on the sample and on the switches before it: a plan that agrees with an
earlier one up to a cut starts there. Where each plan has one layer low, that saves a third of the
work and more.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from precision_bisect.backends.emulation.segments import Segment
from precision_bisect.backends.emulation.switched import FLAGS
from precision_bisect.model.ort import Session, as_value
from precision_bisect.protocols import Sample

if TYPE_CHECKING:
    import onnxruntime

WORTH_S = 5e-3
"""Shorter inferences are left whole: a session more takes 0.1 ms."""
KEPT_BYTES, KEPT_SHARE = 2**30, 1 / 8
"""What crosses cuts is kept up to so many bytes, and up to this share of the free memory."""
_REMEMBERED = 2**16
"""So many keys of what was computed once are remembered."""

_Values: TypeAlias = "Mapping[str, onnxruntime.OrtValue]"


class Segmented:
    """The sessions of the segments, and what crosses the cuts in what was evaluated.

    Several threads may run it at once. What crosses is kept once it is computed a second time;
    what was not asked for longest goes first. `brief` tells that inferences are too short for it.
    `outputs` are the names of those of the whole. Raises ModelError as Session does.
    """

    def __init__(self, segments: Sequence[Segment], outputs: Sequence[str], threads: int) -> None:
        self.brief = False
        self._outputs = outputs
        self._flags = [each.flags for each in segments]
        self._carried = [each.carried for each in segments]
        self._sessions = [Session(each.checked, threads=threads) for each in segments]
        self._kept = _Kept()

    @property
    def kept_nbytes(self) -> int:
        """How many bytes are kept."""
        return self._kept.nbytes

    def run(self, feed: Sample) -> Sample:
        """Return the outputs by name. Raises RuntimeError, in one line, where the run fails."""
        began = time.perf_counter()
        own = [feed[FLAGS][numbers] for numbers in self._flags]
        given = {name: as_value(array) for name, array in feed.items() if name != FLAGS}
        keys = list(_keys(feed, own))
        start, values = self._kept.latest(keys)
        for number in range(start, len(own)):
            flags = {FLAGS: as_value(own[number])}
            found = self._sessions[number].run_values({**given, **values, **flags})
            values = {
                name: value
                for name, value in {**values, **found}.items()
                if name in self._carried[number]
            }
            if number + 1 < len(own):
                self._kept.offer(keys[number], number + 1, values)
        if start == 0 and time.perf_counter() - began < WORTH_S:
            self.brief = True
        return {name: values[name].numpy() for name in self._outputs}


def _keys(feed: Sample, own: Sequence[NDArray[np.bool_]]) -> Iterator[bytes]:
    """Yield what decides all that is computed up to the end of each segment."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(feed.keys() - {FLAGS}):
        digest.update(f"{name} {feed[name].shape} {feed[name].dtype} ".encode())
        digest.update(feed[name].tobytes())
    for flags in own:
        digest.update(flags.tobytes())
        yield digest.digest()


class _Kept:
    """What crosses cuts, by what decides it."""

    def __init__(self) -> None:
        import psutil  # for late code

        self._most = int(min(KEPT_BYTES, KEPT_SHARE * psutil.virtual_memory().available))
        self.nbytes = 0
        self._lock = Lock()
        self._once: set[bytes] = set()
        self._values: OrderedDict[bytes, tuple[int, _Values, int]] = OrderedDict()

    def latest(self, keys: Sequence[bytes]) -> tuple[int, _Values]:
        """Return the first segment that is to be computed, and what it reads of earlier ones."""
        with self._lock:
            for key in reversed(keys):
                if key in self._values:
                    self._values.move_to_end(key)
                    return self._values[key][:2]
        return 0, {}

    def offer(self, key: bytes, start: int, values: _Values) -> None:
        """Keep what the segments from `start` on read, where it was computed before."""
        nbytes = sum(value.tensor_size_in_bytes() for value in values.values())
        with self._lock:
            if key not in self._once:
                if len(self._once) >= _REMEMBERED:
                    self._once.clear()
                self._once.add(key)
            elif key not in self._values and nbytes <= self._most:
                self._values[key] = start, values, nbytes
                self.nbytes += nbytes
                while self.nbytes > self._most:
                    self.nbytes -= self._values.popitem(last=False)[1][2]
