"""The one place that makes ONNX Runtime sessions of FP32 graphs, on the CPU unless told otherwise.

Weights are handed over beside the graph, so no size limit of protobuf applies. Each is handed over
once: then a weight that the optimizer rewrites is the one that the session computes with.

Graphs whose verdict would be false are refused: the CPU provider computes FP16-typed operators in
FP32 (x=300: x*x/300 gives 300 there, and inf on any device that computes FP16).
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.errors import ModelError, PluginError, in_words
from precision_bisect.graphs.half_compute import refuse_half_compute
from precision_bisect.graphs.weights import Part, pointing_to, total_bytes
from precision_bisect.machine.stopping import stoppable
from precision_bisect.settings.reading import CUSTOM_OPS

if TYPE_CHECKING:
    import onnxruntime

CPU = "CPUExecutionProvider"
Providers: TypeAlias = Sequence[str | tuple[str, Mapping[str, str]]]
"""Names of execution providers, some with options; the first that can run a node takes it."""
ON_CPU: Providers = (CPU,)
DATA_FOLDER = "session.model_external_initializers_file_folder_path"
"""The setting of a session that says where files of weights are looked for."""
_NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"
_UNPACKED = ("session.disable_prepacking", "1")
# It takes Relu away before what is quantized to FP8, which has a sign: see
# `findings/relu_before_fp8.sh`. To INT8 it does so only where all stays the same.
_WRONG = ("ReluQuantRewrite",)
# Bytes of weights, or nodes, above which sessions keep no second, packed copy of the weights.
# Limits on memory; answers are the same with half and double (`benchmarks/constants.py`).
_PREPACK_BYTES, _PREPACK_NODES = 2**30, 2**12


def on_cpu() -> Providers:
    """Return the CPU's provider."""
    return ON_CPU


@cache
def runtime() -> ModuleType:
    """Import and return onnxruntime. Raises PluginError where it is not there or does not load."""
    try:
        os.environ.setdefault(_NO_TELEMETRY, "1")  # telemetry leaves a file in TMPDIR, too
        import onnxruntime

        module: ModuleType = onnxruntime
        module.InferenceSession  # noqa: B018 - what is left of a removed package has none
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "onnxruntime"
        why = "is not installed" if missing else f"does not load: {in_words(error)}"
        hint = "more memory (ulimit -v)" if "map segment" in why else "pip install onnxruntime"
        raise PluginError(f"onnxruntime {why}", hint) from error
    return module


_custom_ops: tuple[Path, ...] = ()


def use_custom_ops(libraries: Sequence[Path]) -> None:
    """Let every session of this process from now on know the operators of these libraries.

    Raises PluginError for one that ONNX Runtime cannot register.
    """
    global _custom_ops
    _custom_ops = tuple(libraries)
    if libraries:
        session_options()


def session_options() -> "onnxruntime.SessionOptions":
    """Return options for a session, which knows the operators of libraries in use."""
    options: onnxruntime.SessionOptions = runtime().SessionOptions()
    for path in _custom_ops:
        try:
            options.register_custom_ops_library(str(path.absolute()))
        except Exception as error:  # onnxruntime's classes share no base but Exception
            raise PluginError(
                f"{CUSTOM_OPS} {path} cannot be registered: {ort_message(error)}",
                f"it must be built for ONNX Runtime {runtime().__version__} or older",
            ) from error
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedGraph:
    """A graph that a session may be opened over, without the message that it came from.

    `text` is the serialized graph, which has `nodes` nodes. Stubs in it stand for `weights`, or
    for values in files below `folder`.
    """

    text: bytes
    nodes: int
    weights: Mapping[str, NDArray[Any]]
    folder: Path | None
    nbytes: int

    @property
    def packs(self) -> bool:
        """Whether a session may keep a second, packed copy of the weights."""
        return are_packed(self.nodes, self.nbytes)


def are_packed(nodes: int, nbytes: int) -> bool:
    """Tell whether sessions over so many nodes, with so many bytes of weights, pack these."""
    return nbytes <= _PREPACK_BYTES and nodes <= _PREPACK_NODES


def check(proto: onnx.ModelProto, weights: Mapping[str, NDArray[Any]]) -> CheckedGraph:
    """Return the graph, whose stubs stand for `weights`, ready to be opened.

    Raises RefusedError for a graph that computes in 16-bit floats.
    """
    refuse_half_compute(proto)
    return _checked(proto, weights)


class Session:
    """An ONNX Runtime session over a graph whose stubs stand for `weights`.

    A checked graph has its own weights. The session copies those that it cannot map from a file.
    `threads` is the number of intra-operator threads, 0 for one per core. One not `optimised`
    computes node by node what the graph says, and copies no weights unless they are `packed`. A
    `frugal` one computes first what frees values. Raises RefusedError for a graph that computes in
    16-bit floats, and ModelError for one that ONNX Runtime cannot load.
    """

    def __init__(
        self,
        graph: onnx.ModelProto | CheckedGraph,
        weights: Mapping[str, NDArray[Any]] | None = None,
        threads: int = 0,
        providers: Providers = ON_CPU,
        *,
        optimised: bool = True,
        packed: bool = False,
        frugal: bool = False,
    ) -> None:
        if isinstance(graph, onnx.ModelProto):
            graph = check(graph, weights or {})
        options = session_options()
        if frugal:
            options.execution_order = runtime().ExecutionOrder.PRIORITY_BASED
        options.intra_op_num_threads = threads
        # Spinning between layers takes cores from others, which under load costs far more.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # Q/DQ stay what the file says: integer kernels would compute what no FP32 layer does.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        if not optimised:
            options.graph_optimization_level = runtime().GraphOptimizationLevel.ORT_DISABLE_ALL
        if not (graph.packs and (optimised or packed)):
            options.add_session_config_entry(*_UNPACKED)
        # Given in two ways they are not copied, so they must outlive the session. Of an optimised
        # one a weight that was rewritten under its own name would have its old value back.
        uncopied = {} if optimised else graph.weights
        self._held = {name: as_value(array) for name, array in uncopied.items()}
        for name, value in self._held.items():
            options.add_initializer(name, value)
        self.raw = _open(graph, options, providers, _WRONG)
        self._input_names = [argument.name for argument in self.raw.get_inputs()]
        self.output_names = [output.name for output in self.raw.get_outputs()]

    def run(
        self, feed: Mapping[str, NDArray[Any]], wanted: Sequence[str] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return the `wanted` outputs by name, or all; only what they need is computed.

        Raises RuntimeError, in one line, where the run fails, and Stopped where it was ended.
        """
        names = self.output_names if wanted is None else list(wanted)
        if not names:
            return {}
        with _running() as how:
            values = self.raw.run(names, dict(feed), how)
        return dict(zip(names, values, strict=True))

    def run_values(
        self, feed: Mapping[str, "onnxruntime.OrtValue"]
    ) -> "dict[str, onnxruntime.OrtValue]":
        """Return all outputs by name, without a copy; what the graph does not read is left out.

        Raises as `run` does.
        """
        binding = self.raw.io_binding()
        with _running() as how:
            for name in feed.keys() & self._input_names:
                binding.bind_ortvalue_input(name, feed[name])
            for name in self.output_names:
                binding.bind_output(name)
            self.raw.run_with_iobinding(binding, how)
        # Iterating over the vector takes 80 us, an element by its index 1 us.
        values = binding.get_outputs_as_ortvaluevector()
        wrap = runtime().OrtValue
        return {name: wrap(values[i]) for i, name in enumerate(self.output_names)}


@contextmanager
def _running() -> "Iterator[onnxruntime.RunOptions]":
    """Yield options that end the run between two nodes; a node goes on to its own end."""
    options = runtime().RunOptions()
    # The default, said here: it is asked for in each run, and what is not said is an error of C++.
    options.add_run_config_entry("gpu_graph_id", "0")
    with stoppable(partial(setattr, options, "terminate", True)):
        try:
            yield options
        except Exception as error:  # onnxruntime's classes share no base but Exception
            raise RuntimeError(ort_message(error)) from error


def as_value(array: NDArray[Any]) -> "onnxruntime.OrtValue":
    """Return an array as ONNX Runtime takes it, copied only if it is not contiguous."""
    contiguous = np.require(array, requirements=("C", "A"))
    value: onnxruntime.OrtValue = runtime().OrtValue.ortvalue_from_numpy(contiguous)
    return value


def output_types(proto: onnx.ModelProto, weights: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """Return ONNX Runtime's name for the type of each graph output; nothing is computed.

    Raises ModelError for a model that it cannot load.
    """
    options = session_options()
    _leave_as_it_is(options)
    outputs = _open(_checked(proto, weights), options, ON_CPU).get_outputs()
    return {output.name: output.type for output in outputs}


def write_optimised(
    proto: onnx.ModelProto,
    weights: Mapping[str, NDArray[Any]],
    path: Path,
    disabled: Collection[str] = (),
) -> None:
    """Write what the optimizer makes of a graph on the CPU, its fusions included; nothing is run.

    It does without the `disabled` optimizers. Raises ModelError for a model that it cannot load.
    """
    options = session_options()
    options.add_session_config_entry(*_UNPACKED)
    # Above this level come layouts of the CPU's own.
    options.graph_optimization_level = runtime().GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    _open(_checked(proto, weights), options, ON_CPU, disabled)


class LacksKernel(Exception):
    """ONNX Runtime knows the operators of a file, and its CPU provider not in these types."""


LEVELS = ("ORT_ENABLE_ALL", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_BASIC", "ORT_DISABLE_ALL")
"""What `graph_optimization_level` may be, ONNX Runtime's own first; the last rewrites nothing."""
AS_IT_IS = LEVELS[-1]


def open_file(path: Path, threads: int, level: str = AS_IT_IS) -> "onnxruntime.InferenceSession":
    """Return a session of the CPU provider over a file as it is, whatever its types.

    `level` is one of `LEVELS`. Raises LacksKernel, and ModelError for what does not open
    otherwise.
    """
    runtime()
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

    options = session_options()
    options.intra_op_num_threads = threads
    if level == AS_IT_IS:
        _leave_as_it_is(options)
    options.graph_optimization_level = getattr(runtime().GraphOptimizationLevel, level)
    try:
        return _loaded(str(path), options, ON_CPU)
    except NoKernel as error:
        raise LacksKernel(ort_message(error)) from error
    except Exception as error:  # onnxruntime's classes share no base but Exception
        why = ort_message(error).removeprefix(f"Load model from {path} failed:")
        raise ModelError(why, "export it again") from error


_AT_NODE = re.compile(
    r"^Non-zero status code returned while running \S+ node\. Name:'([^']*)' Status Message: "
)
# A line of ONNX Runtime's sources with the signature of its function.
_SOURCE = re.compile(r"/\S+\.(?:cc|h|cu):\d+ .*?\)(?: const)?(?: \[with [^\]]*\])? ")


def ort_message(error: Exception) -> str:
    """Return an ONNX Runtime error without its status prefix, on one line."""
    text = " ".join(str(error).split())
    text = text.split(" : ", 3)[-1] if text.startswith("[ONNXRuntimeError]") else text
    return _SOURCE.sub("", _AT_NODE.sub(r"\1: ", text))


def _checked(proto: onnx.ModelProto, weights: Mapping[str, NDArray[Any]]) -> CheckedGraph:
    mapped = {name: a for name, a in weights.items() if isinstance(a, np.memmap) and a.filename}
    files = {name: Path(str(array.filename)) for name, array in mapped.items()}
    folder = None
    if mapped:
        folder = Path(os.path.commonpath([file.parent for file in files.values()]))
        # ONNX Runtime then maps the same pages, where values handed over would be copied.
        places = {
            name: Part(
                location=files[name].relative_to(folder).as_posix(),
                offset=array.offset,
                length=array.nbytes,
            )
            for name, array in mapped.items()
        }
        proto = pointing_to(proto, places)
    return CheckedGraph(
        text=proto.SerializeToString(),
        nodes=len(proto.graph.node),
        weights={name: array for name, array in weights.items() if name not in mapped},
        folder=folder,
        nbytes=total_bytes(weights),
    )


def _leave_as_it_is(options: Any) -> None:
    """Let a session neither rewrite its graph nor pack its weights."""
    options.graph_optimization_level = runtime().GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry(*_UNPACKED)


def _open(
    graph: CheckedGraph, options: Any, providers: Providers, disabled: Collection[str] = ()
) -> "onnxruntime.InferenceSession":
    """Return a session over the graph and its weights."""
    if graph.folder is not None:
        options.add_session_config_entry(DATA_FOLDER, str(graph.folder))
    if graph.weights:
        values = [as_value(array) for array in graph.weights.values()]
        options.add_external_initializers(list(graph.weights), values)
    try:
        return _loaded(graph.text, options, providers, disabled)
    except Exception as error:  # onnxruntime's and protobuf's share no base but Exception
        raise ModelError(
            f"ONNX Runtime {runtime().__version__} cannot load the model: {ort_message(error)}",
            "an operator, domain or opset that it does not know cannot be judged here; "
            f"{CUSTOM_OPS} LIB.so registers operators, and with --reference TensorRT needs none",
        ) from error


def _loaded(
    source: str | bytes, options: Any, providers: Providers, disabled: Collection[str] = ()
) -> "onnxruntime.InferenceSession":
    """Return a session over a file or its text; the optimizer ends early once the time is over."""
    # Fatal only: refusals are raised, and warnings would go to the terminal.
    options.log_severity_level = 4
    with stoppable(partial(options.set_load_cancellation_flag, True), alone=False):
        # The fallback would print to stdout and try the same provider again.
        more = {"enable_fallback": 0, "disabled_optimizers": set(disabled)}
        session: onnxruntime.InferenceSession
        session = runtime().InferenceSession(source, options, list(providers), **more)
    return session
