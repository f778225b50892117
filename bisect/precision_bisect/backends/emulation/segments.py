"""The switched graph in segments: a plan computes only what follows its first changed switch.

Results are those of one session, bit for bit. A cut runs only through outputs and inputs of
switches, and no optimisation looks through a switch. What no layer computes (shapes, flags,
constants) is repeated in each segment that reads it.

What crosses a cut depends on the sample and on the switches before it. So a plan that agrees with
an earlier one up to a cut starts there. In a ranking, where each plan has one layer low, that
saves a third of the work and more.
"""

import hashlib
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from precision_bisect.backends.emulation.declared import Declared
from precision_bisect.backends.emulation.fixed_edges import with_fixed_edges, without_switches
from precision_bisect.backends.emulation.snippets import Flags, split_flags
from precision_bisect.backends.emulation.switched import FLAGS_INPUT, SwitchedGraph
from precision_bisect.backends.emulation.wiring import Wiring
from precision_bisect.errors import ModelError
from precision_bisect.graphs.graph import opset
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.ort import CheckedGraph, Session, as_value, check
from precision_bisect.graphs.weights import total_bytes
from precision_bisect.machine.stopping import look_at_clock
from precision_bisect.protocols import Sample

if TYPE_CHECKING:
    import onnxruntime


MOST_SEGMENTS, FEWEST_SEGMENTS = 8, 4
"""Segments of a graph, at most (see MOST_SWITCHES) and at least. With 8 a ranking of NAFNet and of
PP-OCR det takes 0.64 and 0.70 of the time, and a plan that shares nothing 1.1 times; 4 and 16 are
no better on either."""
MOST_SWITCHES = 500
"""Switches of a segment, on average, above which there are more segments: the time that ONNX
Runtime takes to open one grows with the square of its nodes. Results are those of one session."""
SWITCHES = 16
"""Switches of a segment, at least, on average. With half and double answers are the same
(`benchmarks/constants.py`)."""
REPEATED_WEIGHTS = 0.1
"""Share of the weights' bytes that segments may hold a second time, at most. A limit on memory."""
OFF_BYTES = 2**26
"""Bytes of weights up to which segments have sessions of their own for every layer high. A limit
on memory, of which these take as much again."""
REPEATED = 12
"""Runs of a bare segment with the same flags from which they have a session of their own: it takes
as long to open as some thirty runs save. In a ranking no layer is low on more than 8 samples."""
WORTH_S = 5e-3
"""Seconds of an inference below which it is left whole: one session more takes 0.1 ms."""
SHORT_RUNS = 256
"""Short inferences from which on that pays: one session of all takes 0.2 s to open, and a run that
keeps nothing ends before. A round figure."""
KEPT_BYTES, KEPT_SHARE = 2**30, 1 / 8
"""Bytes that crossing values are kept up to, and the same as a share of the free memory. Limits
on memory; answers are the same with half and double (`benchmarks/constants.py`)."""
# Keys that are remembered of values computed once. A bound on memory: 16 bytes each.
_REMEMBERED = 2**16
# The same of flags that are counted: a byte for each.
_COUNTED = 2**10

_Values: TypeAlias = "Mapping[str, onnxruntime.OrtValue]"

_TENSORS = onnx.TensorProto
_PLAIN_TYPES = (_TENSORS.FLOAT, _TENSORS.DOUBLE, _TENSORS.INT64, _TENSORS.INT32, _TENSORS.BOOL)
_NOT_FLOATS = (_TENSORS.INT64, _TENSORS.INT32, _TENSORS.BOOL)


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

    def without_switches(self, flags: NDArray[np.bool_]) -> CheckedGraph:
        """Return what computes the same with these flags; for one that is `bare`."""
        proto = onnx.ModelProto.FromString(self.checked.text)
        names = (Flags.name(number) for number in self.flags)
        on = {name: bool(flag) for name, flag in zip(names, flags, strict=True)}
        fixed, weights = without_switches(proto, dict(self.checked.weights), on)
        return replace(self.checked, text=fixed.SerializeToString(), weights=weights)


def cut(graph: SwitchedGraph, model: Model, *, bare: bool = False) -> Iterator[Segment]:
    """Yield the segments of a model's graph in order; none if it is small or cuts are inexact.

    They are `bare` if the graph is. Raises RefusedError as `check` does.
    """
    switches = len(graph.switches.layers)
    count = min(max(MOST_SEGMENTS, switches // MOST_SWITCHES), switches // SWITCHES)
    if count < FEWEST_SEGMENTS:
        return
    wiring = Wiring(graph.proto.graph, model.elem_types)
    if not wiring.plain:
        return
    declared = Declared(graph, model)
    edges = [0, *wiring.narrow(count, declared), len(wiring.nodes)]
    if len(edges) <= FEWEST_SEGMENTS:
        return
    spans = [_Span.between(wiring, start, end) for start, end in pairwise(edges)]
    segment_bytes = sum(
        graph.weights[name].nbytes for span in spans for name in span.read & graph.weights.keys()
    )
    whole = total_bytes(graph.weights)
    # Weights that several segments read are held once for each.
    if segment_bytes <= (1 + REPEATED_WEIGHTS) * whole:
        for span in spans:
            if span.outputs:
                yield _segment(graph, wiring, declared, span, bare=bare)


@dataclass(frozen=True, slots=True)
class _Span:
    """The parts of a segment: the numbers of its nodes, and names of tensors."""

    nodes: Sequence[int]
    read: set[str]
    given: set[str]
    outputs: Sequence[str]
    carried: frozenset[str]

    @classmethod
    def between(cls, wiring: Wiring, start: int, end: int) -> "_Span":
        """Take the nodes from `start` to before `end`, and light ones before that they need."""
        look_at_clock()
        available = wiring.crossing(start)
        needed = wiring.crossing(end) | wiring.outputs
        outputs = sorted(name for name in needed if start <= wiring.maker[name] < end)
        nodes = wiring.within(outputs, available)
        read = set[str]().union(*(wiring.reads[i] for i in nodes))
        carried = frozenset(name for name in needed if wiring.maker[name] < end)
        return cls(nodes, read, available & read, outputs, carried)


def _segment(
    graph: SwitchedGraph, wiring: Wiring, declared: Declared, span: _Span, *, bare: bool
) -> Segment:
    look_at_clock()
    source, read = graph.proto, span.read
    flags = [i for i in range(len(graph.switches.layers)) if Flags.name(i) in read]
    part = onnx.GraphProto(name=source.graph.name)
    if flags:
        part.node.append(split_flags(FLAGS_INPUT, [Flags.name(i) for i in flags], opset(source)))
    part.node.extend(wiring.nodes[i] for i in span.nodes if FLAGS_INPUT not in wiring.reads[i])
    part.input.extend(v for v in source.graph.input if v.name in read and v.name != FLAGS_INPUT)
    part.input.extend(declared.value(name) for name in sorted(span.given))
    part.input.append(helper.make_tensor_value_info(FLAGS_INPUT, _TENSORS.BOOL, [len(flags)]))
    outputs = {value.name: value for value in source.graph.output}
    part.output.extend(outputs.get(name) or declared.value(name) for name in span.outputs)
    part.initializer.extend(tensor for tensor in source.graph.initializer if tensor.name in read)
    proto = onnx.ModelProto(ir_version=source.ir_version, graph=part)
    proto.opset_import.extend(source.opset_import)
    weights = {name: array for name, array in graph.weights.items() if name in read}
    # Weights are packed if those of the whole graph would be: otherwise results could differ.
    nbytes = total_bytes(graph.weights)
    checked = replace(check(proto, weights), nodes=len(source.graph.node), nbytes=nbytes)
    off = None
    if flags and nbytes <= OFF_BYTES and not bare:
        fixed = with_fixed_edges(proto, declared, {Flags.name(i): False for i in flags})
        off = replace(checked, text=fixed.SerializeToString())
    return Segment(checked, np.array(flags, np.int64), span.carried, off, bare)


class Segmented:
    """The sessions of the segments, and values that crossed cuts in earlier evaluations.

    Several threads may run it at once. Crossing values are kept once they are computed a second
    time; of those kept, the longest unused go first. `short_runs` are the inferences since one was
    too short for this. `segments` are taken out one by one: each is freed before the next opens.
    `outputs` are the names of the whole graph's outputs. Raises ModelError as Session does.
    """

    def __init__(self, segments: deque[Segment], outputs: Sequence[str], threads: int) -> None:
        self.short_runs = 0
        self._outputs = outputs
        self._flags: list[NDArray[np.int64]] = []
        self._carried: list[frozenset[str]] = []
        self._sessions: list[Session] = []
        self._fixed: list[_Fixed] = []
        while segments:
            look_at_clock()
            segment = segments.popleft()
            session = Session(segment.checked, threads=threads, optimised=not segment.bare)
            self._sessions.append(session)
            self._flags.append(segment.flags)
            self._carried.append(segment.carried)
            # Only a bare one is held, which has no copies of its weights.
            fixed = segment.without_switches if segment.bare else partial(_off, segment.off)
            self._fixed.append(_Fixed(fixed, threads, bare=segment.bare))
        self.kept = _Kept()

    def run(self, feed: Sample) -> Sample:
        """Return the outputs by name. Raises RuntimeError, in one line, where the run fails."""
        began = time.perf_counter()
        own = [feed[FLAGS_INPUT][numbers] for numbers in self._flags]
        inputs = {name: as_value(array) for name, array in feed.items() if name != FLAGS_INPUT}
        keys = list(_keys(feed, own))
        start, values = self.kept.latest(keys)
        for number in range(start, len(own)):
            flags = {FLAGS_INPUT: as_value(own[number])}
            session = self._fixed[number].session(own[number]) or self._sessions[number]
            outputs = session.run_values({**inputs, **values, **flags})
            values = {
                name: value
                for name, value in {**values, **outputs}.items()
                if name in self._carried[number]
            }
            if number + 1 < len(own):
                self.kept.offer(keys[number], number + 1, values)
        # Only a full run tells how long an inference takes.
        if self.short_runs or (start == 0 and time.perf_counter() - began < WORTH_S):
            self.short_runs += 1
        return {name: values[name].numpy() for name in self._outputs}


def _off(graph: CheckedGraph | None, flags: NDArray[np.bool_]) -> CheckedGraph | None:
    return None if flags.any() else graph


class _Fixed:
    """The latest session of a segment without switches, for flags that it has again and again.

    It takes a fraction of the time, and of the memory, of the session for all flags. `make`
    returns its graph, None where there is none for some flags; a `bare` one takes time to make.
    """

    def __init__(
        self,
        make: Callable[[NDArray[np.bool_]], CheckedGraph | None],
        threads: int,
        *,
        bare: bool,
    ) -> None:
        self._make = make
        self._bare = bare
        self._threads = threads
        self._opening = Lock()
        self._runs = Counter[bytes]()
        self._latest: tuple[bytes, Session | None] = b"none yet", None

    def session(self, flags: NDArray[np.bool_]) -> Session | None:
        """Return the session for these flags, None while they are rare."""
        key = flags.tobytes()
        with self._opening:
            if key == self._latest[0]:
                return self._latest[1]
            if self._bare and self._is_rare(key):
                return None
            graph = self._make(flags)
            if graph is None:
                return None
            self._latest = key, None
            # What does not open so is no loss: the other computes the same.
            with suppress(ModelError):
                session = Session(graph, threads=self._threads, optimised=not self._bare)
                self._latest = key, session
            return self._latest[1]

    def _is_rare(self, key: bytes) -> bool:
        """Count a run with these flags, anew after the latest that were frequent."""
        self._runs[key] += 1
        rare = self._runs[key] < REPEATED
        if not rare or len(self._runs) > _COUNTED:
            self._runs.clear()
        return rare


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
