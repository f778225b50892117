"""Real FP16 and BF16 kernels: typed graphs on ONNX Runtime's CUDA provider.

ONNX Runtime always adds its CPU provider for nodes that CUDA does not take, and computes 16-bit
operators there in FP32. So layers that land there are found before a search (`unbuildable`). A
plan with a low layer that still lands there has no verdict.

Tensors inside become outputs where the optimizer fuses nothing else for it: the optimised graph
must have the same nodes as without.

On CUDA the profile's time of a node is that of its launch, unless launches wait for their kernels:
the process has to begin with `provider.ONE_BY_ONE`. Names do not tell what a fused node computes:
a Gelu may have a name of its own, and a Conv that took in an Add keeps its own. Tensors do, as the
optimizer keeps their names: a node computes all that lies between the tensors that it writes and
those that still exist. So the optimised graph is written to a file, and laid over the typed one.
"""

import json
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import onnx

from precision_bisect.backends.backend_plugin import failure
from precision_bisect.backends.cuda.building import TIMED, TypedSessions, layer_called
from precision_bisect.backends.cuda.cuda_engine import BoundRun, SessionEngine, as_bound
from precision_bisect.backends.cuda.opening import Opened, Opener, opening_failures
from precision_bisect.backends.cuda.provider import (
    deployed_provider,
    on_cuda,
    require_cuda,
    searching,
)
from precision_bisect.backends.inspection.shown_tensors import ShownTensor
from precision_bisect.backends.timing import WARM_UP_RUNS, middle
from precision_bisect.errors import RefusedError
from precision_bisect.graphs.graph import showing
from precision_bisect.graphs.ort import ort_message, runtime
from precision_bisect.graphs.typed.model_files import TypedFolder
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.graphs.typed.typed_graph import TypedGraph
from precision_bisect.graphs.types import infer_elem_types
from precision_bisect.graphs.weights import total_bytes
from precision_bisect.layer_table import Exclusion, LayerName, LayerTable
from precision_bisect.machine.gpu import cuda_version, devices, driver_version
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.search.speed.kernel_times import KernelTimes, TimedKernel
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.trial import TrialStatus

MOST_WRITTEN_BYTES = 2**29
"""Weights of an optimised graph that is written, at most; of a larger model names have to tell. A
bound: half a gigabyte takes about a second."""
# How ONNX Runtime begins the name of a tensor beside a Cast that it has inserted.
_RENAMED = "InsertedPrecisionFreeCast_"
_RUN = "model_run"
# Nodes that are computed once for all, for any number of layers.
_FOLDED = (Exclusion.CONSTANT, Exclusion.SHAPE)


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
    # A graph that is replayed leaves no profile.
    launching = replace(opener, optimised=written, capturing=False)
    session = sessions.open(plan, launching).opened.session
    try:
        BoundRun(session, as_bound(session, feed), on).latency()
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


# Types of which a session gives arrays; numpy has no BF16.
_SHOWN = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)


def shown_by_session(
    files: TypedFolder, typed: TypedGraph, opener: Opener, feeds: Sequence[Sample]
) -> list[list[ShownTensor]]:
    """Return what a session of a typed graph shows of each feed.

    Raises BackendFailure where it does not open or run, RefusedError where showing a tensor
    changes the nodes of the optimised graph.
    """
    first, plain = _opened(files, typed, opener)
    Path(first.session.end_profiling()).unlink()
    del first
    weights = {name: weight.source for name, weight in typed.weights.items()}
    types = infer_elem_types(typed.proto, weights)
    names = [
        name for node in plain.node for name in node.output if name and types.get(name) in _SHOWN
    ]
    extended = replace(typed, proto=showing(typed.proto, names, types))
    opened, shown = _opened(files, extended, opener)
    if _nodes(plain) != _nodes(shown):
        raise RefusedError(
            "showing the tensors of the session changes what ONNX Runtime fuses",
            "leave out --rank-by",
        )
    session = opened.session
    outputs = [output.name for output in session.get_outputs()]
    tensors = []
    for feed in feeds:
        try:
            values = session.run(outputs, as_bound(session, feed))
        except Exception as error:  # onnxruntime's classes share no base but Exception
            raise failure(TrialStatus.RUN_FAILED, ort_message(error)) from error
        tensors.append(
            [
                ShownTensor(name=name, nodes=(), tensors=(name,), values=array)
                for name, array in zip(outputs, values, strict=True)
                if array.dtype.kind == "f"
            ]
        )
    Path(session.end_profiling()).unlink()
    return tensors


def _opened(
    files: TypedFolder, typed: TypedGraph, opener: Opener
) -> tuple[Opened, onnx.GraphProto]:
    """Return a session and the graph that it computes. Raises BackendFailure."""
    optimised = opener.profiles.with_name("shown.onnx")
    own = replace(opener, data=files.root, optimised=optimised, capturing=False)
    with opening_failures(), files.saved(typed) as file:
        opened = own.open(file)
    graph = onnx.load(optimised, load_external_data=False).graph
    optimised.unlink()
    return opened, graph


def _nodes(graph: onnx.GraphProto) -> Counter[tuple[str, str]]:
    """Return how many nodes of each operator a graph has."""
    return Counter((node.domain, node.op_type) for node in graph.node)


# ONNX Runtime's severity that logs only fatal errors.
_FATAL = 4


class CudaBackend:
    """Builds plans of the writer's model as ONNX Runtime sessions on the first GPU of CUDA.

    `workdir` is a folder for its files. Of the settings it obeys `tf32`, `ort_options` and
    `build_timeout_s`; the others are TensorRT's. Plans are opened with the options that plan fast,
    and with the deployed ones where they are built afresh, or always where latencies decide
    (`timed`). `weights` is as in `BackendTask`. Raises PluginError or RefusedError where ONNX
    Runtime cannot compute FP16 on a GPU here.
    """

    name: ClassVar[str] = "onnxruntime"
    emulated: ClassVar[bool] = False

    def __init__(
        self,
        writer: TypedWriter,
        settings: EngineSettings,
        workdir: Path,
        *,
        timed: bool = False,
        weights: Path | None = None,
    ) -> None:
        require_cuda()
        # cuDNN's refusals of single algorithms would fill the terminal, though another one is
        # taken.
        runtime().set_default_logger_severity(_FATAL)
        self._deployed = deployed_provider(tf32=settings.in_tf32, own=settings.ort_options)
        fast = searching(tf32=settings.in_tf32, own=settings.ort_options)
        self._searching = self._deployed if timed else fast
        opener = Opener(
            providers=on_cuda(self._searching),
            profiles=workdir / "profile",
            timeout_s=settings.build_timeout_s,
            capturing=timed,
        )
        self._as_deployed = replace(opener, providers=on_cuda(self._deployed), capturing=True)
        self._writer = writer
        self._sessions = TypedSessions(writer, opener, workdir / "typed", weights)

    @property
    def hasty(self) -> bool:
        """Whether plans that are not built afresh have other options than the deployed."""
        return self._searching != self._deployed

    def versions(self) -> Mapping[str, str]:
        """Return the versions of ONNX Runtime and the driver, the GPU, and what options differ."""
        gpu = devices()[0]
        return {
            "onnxruntime": runtime().__version__,
            "provider": "CUDA",
            "device": f"{gpu.name} (compute capability {gpu.compute_capability})",
            "driver": driver_version() or "unknown",
            "cuda": cuda_version() or "unknown",
            "tf32": "off" if self._deployed["use_tf32"] == "0" else "on",
            "convolutions": self._deployed["cudnn_conv_algo_search"].lower(),
            "convolutions_searching": self._searching["cudnn_conv_algo_search"].lower(),
        }

    def unbuildable(self) -> Mapping[LayerName, str]:
        """Return the candidates that cannot run low on CUDA, each with the reason."""
        return self._sessions.unbuildable()

    def build(self, plan: Plan, *, afresh: bool = False) -> SessionEngine:
        """Open a session for the plan; `afresh` as it is deployed. Raises BackendFailure."""
        opener = self._as_deployed if afresh else None
        return SessionEngine(self._sessions.open(plan, opener), "cuda")

    def show(self, plan: Plan, feeds: Sequence[Sample]) -> Sequence[Sequence[ShownTensor]]:
        """See `ShowsTensors`: what is not fused, where showing it leaves the fusions as they are.

        It is opened as it is deployed.
        """
        # A low layer on the CPU is refused first.
        session = self._sessions.open(plan, self._as_deployed).opened.session
        Path(session.end_profiling()).unlink()
        del session
        typed = self._writer.write(plan, guard_islands=False, seal=True)
        return shown_by_session(self._sessions.files, typed, self._as_deployed, feeds)

    def kernel_times(self, plan: Plan, feed: Sample) -> KernelTimes:
        """See `TimesKernels`; the environment of the process has to hold `provider.ONE_BY_ONE`."""
        return times_of(self._sessions, self._writer, plan, self._as_deployed, feed, "cuda")
