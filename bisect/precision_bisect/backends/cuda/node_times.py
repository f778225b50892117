"""How long each node of an ONNX Runtime session takes, and which layers it computes.

On CUDA the profile's time of a node is that of its launch, unless launches wait for their kernels:
the process has to begin with `provider.ONE_BY_ONE`. Names do not tell what a fused node computes:
a Gelu may have a name of its own, and a Conv that took in an Add keeps its own. Tensors do, as the
optimizer keeps their names: a node computes all that lies between the tensors that it writes and
those that still exist. So the optimised graph is written to a file, and laid over the typed one.
"""

import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from precision_bisect.backends.backend_plugin import failure
from precision_bisect.backends.cuda.building import TIMED, TypedSessions, layer_called
from precision_bisect.backends.cuda.cuda_engine import as_bound, session_latency
from precision_bisect.backends.cuda.opening import Opener
from precision_bisect.backends.timing import WARM_UP_RUNS, middle
from precision_bisect.graphs.ort import ort_message
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.graphs.weights import total_bytes
from precision_bisect.layer_table import Exclusion, LayerTable
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.search.speed.kernel_times import KernelTimes, TimedKernel
from precision_bisect.trial import TrialStatus

MOST_WRITTEN_BYTES = 2**29
"""Weights of an optimised graph that is written, at most; of a larger model names have to tell. A
bound: half a gigabyte takes about a second."""
_RENAMED = "InsertedPrecisionFreeCast_"
"""How ONNX Runtime begins the name of a tensor beside a Cast that it has inserted."""
_RUN = "model_run"
_FOLDED = (Exclusion.CONSTANT, Exclusion.SHAPE)
"""Nodes that are computed once for all, for any number of layers."""


def times_of(
    sessions: TypedSessions, writer: TypedWriter, plan: Plan, opener: Opener, feed: Sample, on: str
) -> KernelTimes:
    """Return the times of a plan's nodes on the device `on` ("cuda" or "cpu").

    `sessions` and `opener` open it. Raises BackendFailure.
    """
    typed = writer.write(plan, guard_islands=False).proto.graph
    weights = total_bytes(writer.model.weights)
    optimised = opener.profiles.with_name("optimised.onnx")
    written = optimised if weights <= MOST_WRITTEN_BYTES else None
    session = sessions.open(plan, replace(opener, optimised=written)).session
    try:
        session_latency(session, as_bound(session, feed), on)
    except Exception as error:  # onnxruntime's classes share no base but Exception
        raise failure(TrialStatus.RUN_FAILED, ort_message(error)) from error
    profile = Path(session.end_profiling())
    took = _took(json.loads(profile.read_text(encoding="utf-8")))
    profile.unlink()
    graph = typed
    if written is not None:
        graph = onnx.load(written, load_external_data=False).graph
        written.unlink()
    return times_on(took, graph, typed, writer.model.table)


def _took(events: Sequence[Mapping[str, Any]]) -> Mapping[str, float]:
    """Return by node the milliseconds of a run; what ran inside another node is a part of it."""
    begun = sorted(event["ts"] for event in events if event["name"] == _RUN)
    nodes = (event for event in events if event.get("cat") == "Node")
    # The outer of two that begin at a time comes first.
    ordered = sorted(nodes, key=lambda event: (event["ts"], -event["dur"]))
    took: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(begun))
    end = 0
    for event in ordered:
        run, last = bisect_right(begun, event["ts"]) - 1, event["ts"] + event["dur"]
        if run >= 0 and last > end and event["name"].endswith(TIMED):
            took[event["name"].removesuffix(TIMED)][run] += event["dur"]
            end = last
    return {name: middle(runs[WARM_UP_RUNS:]) / 1e3 for name, runs in took.items()}


def times_on(
    took: Mapping[str, float], graph: onnx.GraphProto, typed: onnx.GraphProto, table: LayerTable
) -> KernelTimes:
    """Return times by the names of nodes as those of kernels.

    `graph` is the one that the session ran, `typed` the one that it was given.
    """
    folded = {layer.name for layer in table.layers if layer.exclusion in _FOLDED}
    computing = {node.name: node for node in typed.node if node.name not in folded}
    covered = _Covered(computing, typed, graph)
    kernels = []
    for name, node in _ran(list(took), graph).items():
        nodes = {layer_called(name, computing)} & computing.keys()
        nodes |= set() if node is None else covered.by(node)
        kernels.append(TimedKernel(ms=took[name], nodes=frozenset(nodes)))
    return KernelTimes("onnxruntime_profile", kernels)


def _ran(names: Sequence[str], graph: onnx.GraphProto) -> Mapping[str, onnx.NodeProto | None]:
    """Return the node that each name of a profile means, None where that is not known.

    A node without a name is called after its operator and a number, `Exp_435`. Both the profile
    and the file have them in the order in which they run.
    """
    nodes_by_name: dict[str, onnx.NodeProto | None] = {node.name: node for node in graph.node}
    for op_type in {node.op_type for node in graph.node if not node.name}:
        nodes = [node for node in graph.node if not node.name and node.op_type == op_type]
        numbered = re.compile(rf"{op_type}_\d+")
        called = [name for name in names if name not in nodes_by_name and numbered.fullmatch(name)]
        if len(called) == len(nodes):
            nodes_by_name |= zip(called, nodes, strict=True)
    return {name: nodes_by_name.get(name) for name in names}


class _Covered:
    """Which nodes of the `typed` graph each node of the optimised one computes.

    Only those count that are `computing`, by name.
    """

    def __init__(
        self,
        computing: Mapping[str, onnx.NodeProto],
        typed: onnx.GraphProto,
        graph: onnx.GraphProto,
    ) -> None:
        self._makers = {name: node for node in computing.values() for name in node.output if name}
        self._known = {name for node in typed.node for name in node.output}
        self._still = {_own(name) for node in graph.node for name in node.output}
        self._readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                self._readers[name].append(node)

    def by(self, node: onnx.NodeProto) -> set[str]:
        """Return the nodes between what a node writes and the tensors that still exist.

        A node inside of an operator's body, or one that was inserted, writes a tensor that the
        typed graph has not: it works for those that read it, if these compute the same. So does a
        Cast for a kernel of the CPU; what that kernel writes has the name of the Cast behind it.
        """
        node_names: set[str] = set()
        waiting = [name if node.op_type == "Cast" else _own(name) for name in node.output]
        if self._known.isdisjoint(waiting):
            readers = (reader for name in node.output for reader in self._readers[name])
            served = {frozenset(self.by(reader)) for reader in readers}
            return set(served.pop()) if len(served) == 1 else node_names
        while waiting:
            maker = self._makers.get(waiting.pop())
            if maker is not None and maker.name not in node_names:
                node_names.add(maker.name)
                waiting += [name for name in maker.input if name not in self._still]
        return node_names


def _own(name: str) -> str:
    """Return the model's name of a tensor."""
    while name.startswith(_RENAMED):
        name = name.removeprefix(_RENAMED)
    return name
