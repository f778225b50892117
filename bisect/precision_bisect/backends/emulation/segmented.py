"""The switched graph run in segments: a plan computes only what follows its first changed switch.

What crosses a cut depends on the sample and on the switches before it. So a plan that agrees with
an earlier one up to a cut starts there. In a ranking, where each plan has one layer low, that
saves a third of the work and more.
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
from precision_bisect.backends.emulation.switched import FLAGS_INPUT
from precision_bisect.graphs.ort import Session, as_value
from precision_bisect.protocols import Sample

if TYPE_CHECKING:
    import onnxruntime

WORTH_S = 5e-3
"""Seconds of an inference below which it is left whole: one session more takes 0.1 ms."""
KEPT_BYTES, KEPT_SHARE = 2**30, 1 / 8
"""Bytes that crossing values are kept up to, and the same as a share of the free memory. Limits
on memory; answers are the same with half and double (`benchmarks/constants.py`)."""
_REMEMBERED = 2**16
"""Keys that are remembered of values computed once. A bound on memory: 16 bytes each."""

_Values: TypeAlias = "Mapping[str, onnxruntime.OrtValue]"


class Segmented:
    """The sessions of the segments, and values that crossed cuts in earlier evaluations.

    Several threads may run it at once. Crossing values are kept once they are computed a second
    time; of those kept, the longest unused go first. `brief` tells that inferences are too short
    for this. `outputs` are the names of the whole graph's outputs. Raises ModelError as Session
    does.
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
        own = [feed[FLAGS_INPUT][numbers] for numbers in self._flags]
        given = {name: as_value(array) for name, array in feed.items() if name != FLAGS_INPUT}
        keys = list(_keys(feed, own))
        start, values = self._kept.latest(keys)
        for number in range(start, len(own)):
            flags = {FLAGS_INPUT: as_value(own[number])}
            found = self._sessions[number].run_values({**given, **values, **flags})
            values = {
                name: value
                for name, value in {**values, **found}.items()
                if name in self._carried[number]
            }
            if number + 1 < len(own):
                self._kept.offer(keys[number], number + 1, values)
        # Only a full run tells how long an inference takes.
        if start == 0 and time.perf_counter() - began < WORTH_S:
            self.brief = True
        return {name: values[name].numpy() for name in self._outputs}


def _keys(feed: Sample, own: Sequence[NDArray[np.bool_]]) -> Iterator[bytes]:
    """Yield, for each segment, a key of everything that decides the values up to its end."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(feed.keys() - {FLAGS_INPUT}):
        # Shape and type as well: equal bytes may mean different values.
        digest.update(f"{name} {feed[name].shape} {feed[name].dtype} ".encode())
        digest.update(feed[name].tobytes())
    for flags in own:
        digest.update(flags.tobytes())
        yield digest.digest()


class _Kept:
    """Values that crossed cuts, by the key of what decides them."""

    def __init__(self) -> None:
        import psutil  # for late code

        self._most = int(min(KEPT_BYTES, KEPT_SHARE * psutil.virtual_memory().available))
        self.nbytes = 0
        self._lock = Lock()
        self._once: set[bytes] = set()
        self._values: OrderedDict[bytes, tuple[int, _Values, int]] = OrderedDict()

    def latest(self, keys: Sequence[bytes]) -> tuple[int, _Values]:
        """Return the first segment to compute, and the values that it reads of earlier ones."""
        with self._lock:
            for key in reversed(keys):
                # A later cut saves more, so the last key that is known wins.
                if key in self._values:
                    self._values.move_to_end(key)
                    return self._values[key][:2]
        return 0, {}

    def offer(self, key: bytes, start: int, values: _Values) -> None:
        """Keep the values that segments from `start` on read, if they were computed before."""
        nbytes = sum(value.tensor_size_in_bytes() for value in values.values())
        with self._lock:
            # Most plans are evaluated once; keeping all would push out what is used again.
            if key not in self._once:
                if len(self._once) >= _REMEMBERED:
                    self._once.clear()
                self._once.add(key)
            elif key not in self._values and nbytes <= self._most:
                self._values[key] = start, values, nbytes
                self.nbytes += nbytes
                while self.nbytes > self._most:
                    self.nbytes -= self._values.popitem(last=False)[1][2]
