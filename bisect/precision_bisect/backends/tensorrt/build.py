"""One build: from an ONNX file to engine bytes, through Polygraphy's loaders.

There is one path for all libraries; what a library has decides the flags, never its version.
"""

import glob
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from precision_bisect.backends.backend_plugin import Message, failure
from precision_bisect.backends.tensorrt.build_remarks import Remarks, builder_remarks
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.log import (
    LAYERS_HEADING,
    collected,
    cuda_failed,
    first_error,
    out_of_memory,
)
from precision_bisect.backends.tensorrt.profiles import ShapeRange
from precision_bisect.backends.tensorrt.watch import BuildWatch, private
from precision_bisect.backends.tensorrt.weak import mark, to_mark
from precision_bisect.errors import RefusedError, UsageError, printable
from precision_bisect.graphs.typed.high_nodes import ToldNodes
from precision_bisect.layer_table import LayerName
from precision_bisect.machine.gpu import OUT_OF_MEMORY
from precision_bisect.machine.user_scripts import ScriptFailed, load_function, running_script
from precision_bisect.precisions import LowName, QuantizedName
from precision_bisect.protocols import BackendFailure
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.reading import CONFIG_SCRIPT, script_and_function
from precision_bisect.trial import Outcome, TrialStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What weak typing asks for: the layers kept in FP32, and the type that all others may take.

    `high` has what is marked, the nodes between and behind the kept layers too, as `to_mark` takes
    it. `low` is None if nothing may be low. `quantized` are the 8-bit types of the model's own
    quantization, without which TensorRT would not build it so.
    """

    kept: tuple[LayerName, ...]
    high: ToldNodes
    low: LowName | None
    quantized: tuple[QuantizedName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to build, apart from the graph itself.

    `marks` is None for a typed graph. `ranges` are the shapes of dynamic inputs, or the values of
    those inputs whose `values` give a shape. `timing_cache` is the file that all builds of a run
    share, None if the library measures nothing. A build `afresh` does not look into it. An engine
    that is `shown` can emit its unfused tensors.
    """

    settings: EngineSettings
    ranges: Mapping[str, ShapeRange]
    values: Set[str] = frozenset()
    marks: Marks | None = None
    timing_cache: Path | None = None
    afresh: bool = False
    shown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEngine:
    """A built engine: its bytes, and what the build said of it.

    `layers` is the builder's own description of the engine layer by layer, "" if the library gives
    none. `remarks` are its warnings. `timings` are the contents of its timing cache, b"" for none.
    """

    engine: bytes
    layers: str
    remarks: Remarks
    timings: bytes = b""


def build(flavour: Flavour, source: Path, recipe: Recipe) -> BuiltEngine:
    """Build the ONNX file `source`.

    Raises BackendFailure: build_failed with TensorRT's own first error, timed_out after the
    settings' limit. KeyboardInterrupt comes through. Raises RefusedError for a model whose inputs
    give shapes by their values, and where Polygraphy uses another library in this process.
    """
    limit_s = recipe.settings.build_timeout_s
    late = f"the build took longer than {limit_s or 0:g} s"
    unmarked: list[LayerName] = []
    with collected(flavour) as messages, BuildWatch(limit_s) as watch:
        from polygraphy.exception import PolygraphyException

        try:
            with private(recipe.timing_cache, afresh=recipe.afresh) as cache:
                own = replace(recipe, timing_cache=cache)
                engine = bytes(_loader(flavour, source, own, watch, unmarked)())
                timings = cache.read_bytes() if cache is not None and cache.exists() else b""
        except PolygraphyException as error:
            # A cancelled build fails with a message of its own: the deadline is the cause.
            if watch.expired:
                raise failure(TrialStatus.TIMED_OUT, late) from error
            raise _build_failed(messages, error, recipe.settings.workspace_mib) from error
        # Some libraries cannot be cancelled: the engine is there, but too late.
        if watch.expired:
            raise failure(TrialStatus.TIMED_OUT, late)
    return BuiltEngine(
        engine=engine,
        layers=next((m.text for m in messages if m.text.startswith(LAYERS_HEADING)), ""),
        remarks=builder_remarks(messages, unmarked),
        timings=timings,
    )


def _build_failed(
    messages: list[Message], error: Exception, workspace_mib: int | None
) -> BackendFailure:
    """Return the failure that says what TensorRT said, or else Polygraphy."""
    text = first_error(messages) or " ".join(str(error).split())
    starved, broken = out_of_memory(messages), cuda_failed(messages)
    # TensorRT says the same of a tactic that does not fit into the workspace it may have.
    if starved and workspace_mib is not None:
        text = f"out of GPU memory, or of --workspace {workspace_mib}: {text}"
    elif starved:
        text = f"{OUT_OF_MEMORY}{text}"
    elif broken:
        text = f"CUDA failed: {text}"
    retry = starved or broken
    return BackendFailure(Outcome(status=TrialStatus.BUILD_FAILED, message=text, retry=retry))


def _loader(
    flavour: Flavour, source: Path, recipe: Recipe, watch: BuildWatch, unmarked: list[LayerName]
) -> Callable[[], Any]:
    from polygraphy.backend.trt import (
        EngineBytesFromNetwork,
        NetworkFromOnnxPath,
        PostprocessNetwork,
        SetDecomposableAttentions,
    )

    flags = flavour.module.NetworkDefinitionCreationFlag
    parsed = NetworkFromOnnxPath(
        str(source),
        strongly_typed=recipe.marks is None and hasattr(flags, "STRONGLY_TYPED"),
        mark_unfused_tensors_as_debug_tensors=recipe.shown,
    )
    # Without this an attention that has no fused kernel, such as one in FP32, fails the build.
    # Where there is one it is taken all the same.
    if hasattr(flavour.module.LayerType, "ATTENTION_INPUT"):
        parsed = SetDecomposableAttentions(parsed)
    cache, monitor = recipe.timing_cache, watch.monitor(flavour.module)

    def configured(builder: Any, network: Any) -> Any:
        served = replace(recipe, ranges=served_ranges(recipe, network))
        return config_loader(flavour, served, monitor)(builder, network)

    loader: Callable[[], Any] = EngineBytesFromNetwork(
        PostprocessNetwork(
            parsed, partial(prepare_network, recipe.marks, unmarked), "precision-bisect"
        ),
        config=configured,
        save_timing_cache=str(cache) if cache else None,
    )
    return loader


def prepare_network(marks: Marks | None, unmarked: list[LayerName], network: Any) -> None:
    """Mark what stays high.

    Kept layers with nothing to mark go into `unmarked`. Raises BackendFailure if that is all of
    them: the engine would be that of the plan that keeps none.
    """
    if marks is None:
        return
    layers_by_node = to_mark(network, marks.high)
    unmarked += [name for name in marks.kept if not layers_by_node.get(name)]
    if marks.kept and len(unmarked) == len(marks.kept):
        one = repr(printable(unmarked[0]))
        message = f"TensorRT has no layer to mark for any kept layer, such as {one}"
        raise failure(TrialStatus.BUILD_FAILED, message)
    for name, layers in layers_by_node.items():
        for layer in layers:
            mark(layer, marks.high[name][0])


def served_ranges(recipe: Recipe, network: Any) -> dict[str, ShapeRange]:
    """Return the ranges that the network takes: of values where it reads values for a shape.

    Raises RefusedError for an input that it reads this way and of which no values are known.
    """
    # The parser decides which inputs are shape tensors, and only once it has parsed.
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    shaping = {tensor.name for tensor in tensors if tensor.is_shape_tensor}
    for name in sorted(shaping - recipe.values):
        raise RefusedError(
            f"input {name!r} gives a shape by its values, of which TensorRT needs a known number",
            "make it a constant of the model",
        )
    return {
        name: bounds
        for name, bounds in recipe.ranges.items()
        if name in shaping or name not in recipe.values
    }


def config_loader(flavour: Flavour, recipe: Recipe, monitor: Any = None) -> Callable[..., Any]:
    """Return a callable that makes the builder's configuration from builder and network.

    TensorRT turns TF32 on by default; here it is on only if the settings ask for it. The user's
    own script has the last word.
    """
    from polygraphy.backend.tensorrt_rtx import CreateConfigRTX
    from polygraphy.backend.trt import CreateConfig, PostprocessConfig

    settings, marks = recipe.settings, recipe.marks
    common = _common(flavour, recipe, monitor)
    if not flavour.targets:
        low = marks.low if marks else None
        quantized = marks.quantized if marks else ()
        config = CreateConfig(
            tf32=settings.in_tf32,
            fp16=low == "fp16",
            bf16=low == "bf16",
            int8="int8" in quantized,
            fp8="fp8" in quantized,
            # "prefer" would let the builder ignore marks without a word.
            precision_constraints="obey" if marks else None,
            **common,
        )
        if recipe.afresh and recipe.timing_cache is not None:
            config = PostprocessConfig(
                config, lambda _builder, _network, config: pin_tactics(flavour.module, config)
            )
        return with_script(config, settings.config_script)
    target = settings.compute_capability
    create = CreateConfigRTX(
        use_gpu=target is None,
        compute_capabilities=[tuple(map(int, target.split(".")))] if target else None,
        **common,
    )

    def with_tf32(builder: Any, network: Any) -> Any:
        config = create(builder, network)
        # Polygraphy's configuration for RTX leaves TF32 on, as the library does.
        if not settings.in_tf32:
            config.clear_flag(flavour.module.BuilderFlag.TF32)
        return config

    return with_script(with_tf32, settings.config_script)


def pin_tactics(trt: ModuleType, config: Any) -> None:
    """Let the build note each layer's kernel in a timing cache of its own, if it can.

    A build that loads such a cache takes the noted kernels. From any other cache it takes only
    times, and equal layers share them. Here each layer is timed by itself, which takes longer.
    """
    flag = getattr(trt.BuilderFlag, "EDITABLE_TIMING_CACHE", None)
    if flag is not None:
        config.set_flag(flag)
        # The present cache was made for a configuration without the flag.
        config.set_timing_cache(config.create_timing_cache(b""), False)


def _common(flavour: Flavour, recipe: Recipe, monitor: Any) -> dict[str, Any]:
    """Return the arguments that both of Polygraphy's configurations take."""
    from polygraphy.backend.trt import Profile

    trt, settings = flavour.module, recipe.settings
    profile = Profile()
    for name, shapes in recipe.ranges.items():
        # Polygraphy takes the names as patterns.
        profile.add(glob.escape(name), shapes.least, shapes.best, shapes.most)
    arguments: dict[str, Any] = {
        "profiles": [profile],
        # Names alone would not tell which layer computes in which precision.
        "profiling_verbosity": trt.ProfilingVerbosity.DETAILED,
        "builder_optimization_level": settings.optimization_level,
        "progress_monitor": monitor,
        "load_timing_cache": str(recipe.timing_cache) if recipe.timing_cache else None,
    }
    if settings.workspace_mib is not None:
        arguments["memory_pool_limits"] = {
            trt.MemoryPoolType.WORKSPACE: settings.workspace_mib * 2**20
        }
    return arguments


def with_script(config: Callable[..., Any], script: str | None) -> Callable[..., Any]:
    """Return a callable that makes the same configuration and lets the script change it, if any.

    It is the script of Polygraphy's `--trt-config-postprocess-script`, for flags of deployed
    engines: version or hardware compatibility, refit, weight streaming, DLA.
    Raises UsageError if the script does not run or lacks the function and, when a configuration is
    made, if the function fails.
    """
    if script is None:
        return config
    # Polygraphy's import takes a second, and most runs have no script.
    from polygraphy.backend.trt import PostprocessConfig

    path, name = script_and_function(script)
    function = load_function(path, name)

    def changed(builder: Any, network: Any, configuration: Any) -> None:
        try:
            with running_script(path):
                function(builder, network, configuration)
        except ScriptFailed as failed:
            raise UsageError(
                f"{CONFIG_SCRIPT} {path.name}: {name}() failed: {failed}",
                "it is given the builder, the network and the configuration",
            ) from failed

    loader: Callable[..., Any] = PostprocessConfig(config, changed)
    return loader
