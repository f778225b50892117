"""The TensorRT backends: real engines of TensorRT or TensorRT-RTX, by what the library can do."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar, Literal

import onnx

from precision_bisect.backends.backend_plugin import SampleShapes
from precision_bisect.backends.inspection.honoured import judge_layers
from precision_bisect.backends.inspection.shown_tensors import ShownTensor
from precision_bisect.backends.tensorrt.build import BuiltEngine, Marks, Recipe, build
from precision_bisect.backends.tensorrt.debug_tensors import can_show
from precision_bisect.backends.tensorrt.flavour import (
    FP8_CAPABILITY,
    Flavour,
    FlavourName,
    has_fp8,
    use_in_polygraphy,
    without_kernel,
)
from precision_bisect.backends.tensorrt.layer_times import timed_layers
from precision_bisect.backends.tensorrt.log import collected, parser_error
from precision_bisect.backends.tensorrt.profiles import shape_ranges
from precision_bisect.backends.tensorrt.tensorrt_engine import TensorRTEngine
from precision_bisect.errors import PluginError, RefusedError, UsageError
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.graphs.quantization.scales import quantized_in_file
from precision_bisect.graphs.typed.high_nodes import told
from precision_bisect.graphs.typed.model_files import TypedFolder
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.graphs.typed.typed_graph import TypedGraph
from precision_bisect.graphs.types import shape_inputs
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Sample
from precision_bisect.runs.runfolder import TIMING_CACHE
from precision_bisect.search.speed.kernel_times import KernelTimes
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.reading import PLUGINS


class TensorRTBackend:
    """Builds plans of the writer's model as TensorRT engines.

    With strong typing a plan is written into the graph. With weak typing the FP32 graph is built
    with the kept layers marked. `shapes` are those of the samples, by input. `workdir` is an empty
    folder that outlives the engines. Raises RefusedError for what the library cannot do,
    UsageError for settings that do not fit the library or the model.
    """

    emulated: ClassVar[bool] = False

    def __init__(
        self,
        writer: TypedWriter,
        settings: EngineSettings,
        flavour: Flavour,
        shapes: SampleShapes,
        workdir: Path,
    ) -> None:
        self.name: FlavourName = flavour.name
        self._writer = writer
        self._model = model = writer.model
        self._pair = writer.pair
        self._typing = _typing(flavour, settings, writer.pair)
        self._target = _target(flavour, settings)
        if writer.pair.low == "fp8" and not has_fp8(self._target):
            raise RefusedError(
                f"compute capability {self._target} has no fp8",
                f"give --compute-capability {FP8_CAPABILITY} or higher, or --low int8",
            )
        for reason in without_kernel(self.name, model, writer.pair.high).values():
            raise RefusedError(reason, "give --high fp32")
        use_in_polygraphy(flavour)
        load_plugin_libraries(flavour, settings.plugins)
        self._flavour = flavour
        self._settings = settings
        self._values = shape_inputs(model.proto.graph, model.inputs)
        self._ranges = shape_ranges(model.inputs, settings, shapes, self._values)
        self._folder = TypedFolder(workdir)
        # A library that builds for absent GPUs times no kernels, so it has no timings to keep.
        self._timing_cache = None if flavour.targets else workdir / TIMING_CACHE

    def versions(self) -> Mapping[str, str]:
        """Return versions, the GPU, the target of builds, and how types are expressed."""
        import polygraphy

        return {
            self.name: self._flavour.version,
            "polygraphy": polygraphy.__version__,
            "device": self._flavour.device or "none",
            "compute_capability": self._target,
            "typing": self._typing,
        }

    def unbuildable(self) -> Mapping[LayerName, str]:
        """Return the candidates that cannot run low, each with the reason.

        Weakly typed, TensorRT keeps such layers in FP32 itself.
        """
        if self._typing == "weak":
            return {}
        # Without guards: the question is what the parser says of each layer's own low form.
        write = partial(self._writer.write, guard_islands=False)
        refused = refused_low(self._flavour, self._model.table.names, write, self._folder)
        idle = without_kernel(self.name, self._model, self._pair.low)
        return {**self._writer.not_low, **idle, **refused}

    def build(self, plan: Plan, *, afresh: bool = False) -> TensorRTEngine:
        """Build the plan; this works without a GPU if the library can.

        A build `afresh` times kernels anew, as builds elsewhere do. Raises BackendFailure where
        TensorRT cannot build it, or not in time.
        """
        if self._typing == "weak":
            typed, built = None, self._built(self._unmarked, self._marks(plan), afresh=afresh)
        else:
            typed = self._writer.write(plan, guard_islands=self._settings.guard_islands)
            with self._folder.saved(typed) as source:
                built = self._built(source, afresh=afresh)
        rtx = self.name == "tensorrt-rtx"
        return TensorRTEngine(
            self._flavour,
            built,
            self._why_not(),
            lambda layers: judge_layers(self._model, plan, typed, layers, self._pair, rtx=rtx),
        )

    def show(self, plan: Plan, feeds: Sequence[Sample]) -> Sequence[Sequence[ShownTensor]]:
        """See `ShowsTensors`: what no kernel has fused away, of strongly typed plans."""
        library = f"{self._flavour.name} {self._flavour.version}"
        if not can_show(self._flavour.module):
            raise RefusedError(f"{library} shows no tensors", "TensorRT 10.12 and later do")
        if self._typing == "weak":
            raise RefusedError("weakly typed, an engine's types are its own", "--typing strong")
        typed = self._writer.write(plan, guard_islands=self._settings.guard_islands)
        with self._folder.saved(typed) as source:
            built = self._built(source, afresh=False, shown=True)
        engine = TensorRTEngine(self._flavour, built, self._why_not(), lambda layers: ())
        with engine:
            return [engine.shown(feed, typed.proto.graph) for feed in feeds]

    def kernel_times(self, plan: Plan, feed: Sample) -> KernelTimes:
        """See `TimesKernels`; kernels are those of the timing cache, as far as it has them."""
        with self.build(plan) as engine:
            took, layers = engine.layer_times(feed)
        proto = self._model.proto
        if self._typing == "strong":
            proto = self._writer.write(plan, guard_islands=self._settings.guard_islands).proto
        names = self._model.table.names
        return timed_layers(took, layers, proto, {names[index] for index in plan.indices})

    def _built(
        self, source: Path, marks: Marks | None = None, *, afresh: bool, shown: bool = False
    ) -> BuiltEngine:
        recipe = Recipe(
            settings=self._settings,
            ranges=self._ranges,
            values=self._values,
            marks=marks,
            timing_cache=self._timing_cache,
            afresh=afresh,
            shown=shown,
        )
        return build(self._flavour, source, recipe)

    @cached_property
    def _unmarked(self) -> Path:
        """The FP32 graph, its nodes named as the model's layers."""
        typed = self._writer.write(
            Plan.all_high(len(self._model.table.candidates)), guard_islands=False
        )
        return self._folder.save(typed, "unmarked.onnx")

    def _marks(self, plan: Plan) -> Marks:
        names = self._model.table.names
        # If nothing runs low the flag is left off: layers that are no candidates could use it,
        # too.
        asks_low = self._pair.low_form in self._model.table.asked.values()
        low = self._pair.low if asks_low or len(plan) < len(names) else None
        kept = tuple(names[index] for index in plan.indices)
        high = told(self._writer.high_nodes(plan), self._model.table)
        return Marks(kept=kept, high=high, low=low, quantized=quantized_in_file(self._model))

    def _why_not(self) -> str:
        """Return why this machine cannot run what is built, "" where it can."""
        if self._flavour.can_run and self._target != self._flavour.compute_capability:
            return (
                f"it is built for compute capability {self._target}, and "
                f"{self._flavour.device} has {self._flavour.compute_capability}"
            )
        return self._flavour.why_not


def _typing(flavour: Flavour, settings: EngineSettings, pair: Pair) -> Literal["strong", "weak"]:
    """Return how precisions are expressed. Raises RefusedError where the library cannot."""
    library = f"{flavour.name} {flavour.version}"
    strong = flavour.strong if settings.typing == "auto" else settings.typing == "strong"
    if strong and not flavour.strong:
        raise RefusedError(f"{library} cannot type strongly", "give --typing weak or auto")
    if not strong and not flavour.weak:
        raise RefusedError(f"{library} cannot mark layers", "give --typing strong or auto")
    if not strong and (pair.low not in LOW_TYPES or pair.high != "fp32"):
        raise RefusedError(
            f"{library} marks layers for fp16 and bf16 against fp32 only, not {pair.low} "
            f"against {pair.high}",
            "give --typing strong, which TensorRT 10 and later can",
        )
    if not strong and not hasattr(flavour.module.BuilderFlag, pair.low.upper()):
        raise RefusedError(f"{library} does not know {pair.low}", "give --low fp16")
    return "strong" if strong else "weak"


def _target(flavour: Flavour, settings: EngineSettings) -> str:
    """Return the compute capability to build for.

    Raises RefusedError if there is nothing to build for, UsageError for one that the library
    cannot build for.
    """
    capability, library = settings.compute_capability, f"{flavour.name} {flavour.version}"
    if capability is None:
        here = flavour.compute_capability
        if here is None or not flavour.can_run:
            raise RefusedError(
                f"{library} cannot build for this machine: {flavour.why_not}",
                "give --compute-capability, such as 8.6"
                if flavour.targets
                else "`precision-bisect doctor` says what can",
            )
        return here
    if capability not in flavour.targets:
        raise UsageError(
            f"{library} cannot build for compute capability {capability}",
            f"choose {', '.join(flavour.targets)}"
            if flavour.targets
            else "it builds for the GPU at hand only; leave --compute-capability out",
        )
    return capability


def load_plugin_libraries(flavour: Flavour, paths: Sequence[Path]) -> None:
    """Load libraries of plugins, once a process, for the parser and the runtime alike.

    A library registers its plugins as it is loaded (REGISTER_TENSORRT_PLUGIN), as for Polygraphy's
    `--plugins` and trtexec's `--staticPlugins`. Raises PluginError for one that does not load.
    """
    if not paths:
        return
    with collected(flavour):
        from polygraphy.backend.trt import load_plugins

        for path in paths:
            try:
                load_plugins(plugins=[str(path.absolute())])
            except OSError as error:
                raise PluginError(
                    f"{PLUGINS} {path} does not load: {error}",
                    f"it must be built for {flavour.name} {flavour.version}, with what it needs "
                    "on LD_LIBRARY_PATH",
                ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What the parser refuses: the name of a node of the file, and why, on one line."""

    node: str
    text: str


def refused_low(
    flavour: Flavour,
    names: Sequence[LayerName],
    write: Callable[[Plan], TypedGraph],
    folder: TypedFolder,
) -> dict[LayerName, str]:
    """Return the candidates that the parser refuses low, in network order, with its own words.

    `names` are the candidates, `write` makes the typed graph of a plan, `folder` is where it goes.
    The all-low graph is parsed; the layers that its errors name are kept high, and it is parsed
    again, until nothing new is named. A parser may stop at its first error, which takes one round
    per refused layer. A layer that is refused even when it is kept is left out: its precision is
    not the reason, and every build will say so.
    """
    pinned: dict[LayerName, str] = {}
    while True:
        plan = Plan.of(index for index, name in enumerate(names) if name in pinned)
        source = folder.save(write(plan), "parsed.onnx")
        graph = onnx.load(source, load_external_data=False).graph
        blamed = {
            layer: refusal.text
            for refusal in refusals(flavour, source)
            for layer in to_blame(graph, refusal.node, set(names))
        }
        if blamed.keys() <= pinned.keys():
            return {name: pinned[name] for name in names if name in pinned.keys() - blamed}
        pinned = {**blamed, **pinned}


def refusals(flavour: Flavour, source: Path) -> Sequence[Refusal]:
    """Parse a typed ONNX file and return the parser's objections to it."""
    trt = flavour.module
    with collected(flavour):
        from polygraphy.backend.trt import CreateNetwork, get_trt_logger

        strong = hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")
        _, network = CreateNetwork(strongly_typed=strong)()
        logger = get_trt_logger()
        trt.init_libnvinfer_plugins(logger, "")
        parser = trt.OnnxParser(network, logger)
        parser.parse_from_file(str(source))
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        return [
            Refusal(node=error.node_name(), text=parser_error(error.func(), error.desc()))
            for error in errors
        ]


def to_blame(graph: onnx.GraphProto, node_name: str, candidates: Set[str]) -> list[LayerName]:
    """Return the candidates that an error at a node comes from.

    That is the node itself or, for a follower or a Cast, the nearest candidates that feed it.
    """
    nodes = {node.name: node for node in graph.node}
    makers = {output: node.name for node in graph.node for output in node.output}
    blamed: dict[LayerName, None] = {}
    pending, visited = [node_name], {node_name}
    while pending:
        name = pending.pop()
        if name in candidates:
            blamed[LayerName(name)] = None
        elif name in nodes:
            before = {makers[tensor] for tensor in nodes[name].input if tensor in makers} - visited
            visited |= before
            pending += sorted(before)
    return list(blamed)
