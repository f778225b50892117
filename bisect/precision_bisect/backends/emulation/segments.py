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
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from precision_bisect.backends.emulation.declared import Declared
from precision_bisect.backends.emulation.fixed_edges import with_fixed_edges
from precision_bisect.backends.emulation.segment_sessions import (
    OFF_BYTES,
    BareSessions,
    OpenSessions,
    Segment,
)
from precision_bisect.backends.emulation.snippets import Flags, split_flags
from precision_bisect.backends.emulation.switched import FLAGS_INPUT, SwitchedGraph
from precision_bisect.backends.emulation.wiring import Wiring
from precision_bisect.graphs.graph import opset
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.ort import as_value, check
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

_Values: TypeAlias = "Mapping[str, onnxruntime.OrtValue]"


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
    spans = [
        _Span.between(wiring, cuts, crossing)
        for cuts, crossing in zip(pairwise(edges), pairwise(wiring.crossing(edges)), strict=True)
    ]
    segment_bytes = sum(
        graph.weights[name].nbytes for span in spans for name in span.read & graph.weights.keys()
    )
    whole = total_bytes(graph.weights)
    # Weights that several segments read are held once for each.
    if segment_bytes <= (1 + REPEATED_WEIGHTS) * whole:
        parts = _Parts(graph)
        for span in spans:
            if span.outputs:
                yield _segment(parts, wiring, declared, span, bare=bare)


@dataclass(frozen=True, slots=True)
class _Span:
    """The parts of a segment: the numbers of its nodes, and names of tensors."""

    nodes: Sequence[int]
    read: set[str]
    given: set[str]
    outputs: Sequence[str]
    carried: frozenset[str]

    @classmethod
    def between(
        cls, wiring: Wiring, cuts: tuple[int, int], crossing: tuple[set[str], set[str]]
    ) -> "_Span":
        """Take the nodes between two cuts, and light ones before that they need.

        `crossing` has the tensors that cross each of the two.
        """
        look_at_clock()
        (start, end), (available, later) = cuts, crossing
        needed = later | wiring.outputs
        outputs = sorted(name for name in needed if start <= wiring.maker[name] < end)
        nodes = wiring.within(outputs, available)
        read = set[str]().union(*(wiring.reads[i] for i in nodes))
        carried = frozenset(name for name in needed if wiring.maker[name] < end)
        return cls(nodes, read, available & read, outputs, carried)


class _Parts:
    """What segments take of a switched graph, by name: a walk for each would be quadratic."""

    def __init__(self, graph: SwitchedGraph) -> None:
        self.graph = graph
        self.nbytes = total_bytes(graph.weights)
        self._flags = {Flags.name(i): i for i in range(len(graph.switches.layers))}
        self._initializers = list(graph.proto.graph.initializer)
        self._places = {tensor.name: i for i, tensor in enumerate(self._initializers)}

    def flags(self, read: set[str]) -> list[int]:
        """Return the numbers of the flags among these names, in order."""
        return sorted(self._flags[name] for name in read & self._flags.keys())

    def initializers(self, read: set[str]) -> list[onnx.TensorProto]:
        """Return the initializers of these names, in the order of the graph."""
        places = sorted(self._places[name] for name in read & self._places.keys())
        return [self._initializers[place] for place in places]


def _segment(
    parts: _Parts, wiring: Wiring, declared: Declared, span: _Span, *, bare: bool
) -> Segment:
    look_at_clock()
    graph, read = parts.graph, span.read
    source, flags = graph.proto, parts.flags(read)
    part = onnx.GraphProto(name=source.graph.name)
    if flags:
        part.node.append(split_flags(FLAGS_INPUT, [Flags.name(i) for i in flags], opset(source)))
    part.node.extend(wiring.nodes[i] for i in span.nodes if FLAGS_INPUT not in wiring.reads[i])
    part.input.extend(v for v in source.graph.input if v.name in read and v.name != FLAGS_INPUT)
    part.input.extend(declared.value(name) for name in sorted(span.given))
    part.input.append(
        helper.make_tensor_value_info(FLAGS_INPUT, onnx.TensorProto.BOOL, [len(flags)])
    )
    outputs = {value.name: value for value in source.graph.output}
    part.output.extend(outputs.get(name) or declared.value(name) for name in span.outputs)
    part.initializer.extend(parts.initializers(read))
    proto = onnx.ModelProto(ir_version=source.ir_version, graph=part)
    proto.opset_import.extend(source.opset_import)
    names = (tensor.name for tensor in part.initializer)
    weights = {name: graph.weights[name] for name in names if name in graph.weights}
    # Weights are packed if those of the whole graph would be: otherwise results could differ.
    checked = replace(check(proto, weights), nodes=len(source.graph.node), nbytes=parts.nbytes)
    off = None
    if flags and parts.nbytes <= OFF_BYTES and not bare:
        fixed = with_fixed_edges(proto, declared, {Flags.name(i): False for i in flags})
        off = replace(checked, text=fixed.SerializeToString())
    return Segment(checked, np.array(flags, np.int64), span.carried, off, bare)


class Segmented:
    """The sessions of the segments, and values that crossed cuts in earlier evaluations.

    Several threads may run it at once. Crossing values are kept once they are computed a second
    time; of those kept, the longest unused go first. `short_runs` are the inferences since one was
    too short for this. `segments` are taken as by their sessions. `outputs` are the names of the
    whole graph's outputs. Raises ModelError as Session does.
    """

    def __init__(self, segments: deque[Segment], outputs: Sequence[str], threads: int) -> None:
        self.short_runs = 0
        self._outputs = outputs
        self._flags = [segment.flags for segment in segments]
        self._carried = [segment.carried for segment in segments]
        self._sessions: BareSessions | OpenSessions = (
            BareSessions(segments, threads)
            if all(segment.bare for segment in segments)
            else OpenSessions(segments, threads)
        )
        self.kept = _Kept()

    def run(self, feed: Sample) -> Sample:
        """Return the outputs by name.

        Raises RuntimeError, in one line, where the run fails, and ModelError where a bare segment
        does not open.
        """
        began = time.perf_counter()
        own = [feed[FLAGS_INPUT][numbers] for numbers in self._flags]
        inputs = {name: as_value(array) for name, array in feed.items() if name != FLAGS_INPUT}
        keys = list(_keys(feed, own))
        start, values = self.kept.latest(keys)
        for number in range(start, len(own)):
            flags = {FLAGS_INPUT: as_value(own[number])}
            session = self._sessions.session(number, own[number])
            outputs = session.run_values({**inputs, **values, **flags})
            values = {
                name: value
                for name, value in {**values, **outputs}.items()
                if name in self._carried[number]
            }
            if number + 1 < len(own):
                self.kept.offer(keys[number], number + 1, values)
        # Only a full run tells how long an inference takes. Switches of all take longer than
        # several sessions that have none.
        short = start == 0 and time.perf_counter() - began < WORTH_S
        if not isinstance(self._sessions, BareSessions) and (self.short_runs or short):
            self.short_runs += 1
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
                # Copies: a session's own value holds all of its memory after it is closed.
                own = {name: as_value(value.numpy().copy()) for name, value in values.items()}
                self._values[key] = start, own, nbytes
                self.nbytes += nbytes
                while self.nbytes > self._most:
                    self.nbytes -= self._values.popitem(last=False)[1][2]
