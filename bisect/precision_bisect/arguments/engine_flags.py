"""Flags that say how engines are built, shared by the commands that build or describe them."""

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from precision_bisect.inputs.input_shapes import parse_shapes
from precision_bisect.settings.durations import duration
from precision_bisect.settings.engine_settings import IO_TYPES, TYPINGS, EngineSettings
from precision_bisect.settings.ort_options import FLAG, parse_ort_options
from precision_bisect.settings.user_libraries import (
    CONFIG_SCRIPT,
    CUSTOM_OPS,
    PLUGINS,
    script_and_function,
)


def add_engine_arguments(group: argparse._ArgumentGroup, timeout: str = "no limit") -> None:
    """Add the flags to a group; `timeout` is the limit of a build that is not told one."""
    group.add_argument(
        "--typing",
        choices=TYPINGS,
        default="auto",
        help="TensorRT: write precisions into the graph (strong: 10, 11, RTX) or mark layers "
        "(weak: 8.6 to 10.x); auto takes strong where the library can (auto)",
    )
    group.add_argument(
        "--guard-islands",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="add zero to the FP32 input of a kept MatMul, Gemm or Conv that stands alone, which "
        "TensorRT would turn back into half (on)",
    )
    group.add_argument(
        "--tf32", action="store_true", help="allow TF32 in what stays FP32 (off, unlike trtexec)"
    )
    group.add_argument(
        FLAG,
        action="append",
        metavar="KEY=VALUE",
        help="ONNX Runtime: judge with this option of its CUDA provider, such as "
        "cudnn_conv_algo_search=EXHAUSTIVE; run_onnxruntime.py opens the answer with it",
    )
    group.add_argument(
        "--compute-capability",
        metavar="X.Y",
        help="TensorRT-RTX: build for this GPU, such as 8.9 (the one here; without one 8.6)",
    )
    for which in ("min", "opt", "max"):
        group.add_argument(
            f"--{which}-shapes",
            action="append",
            metavar="NAME:1x3x224x224",
            help=f"TensorRT: {which} shapes of dynamic inputs, as in trtexec (the samples' own)",
        )
    group.add_argument(
        "--builder-optimization-level", type=int, metavar="N", help="TensorRT: 0 to 5 (3)"
    )
    group.add_argument("--workspace", type=int, metavar="MIB", help="TensorRT: workspace limit")
    group.add_argument(
        PLUGINS,
        action="append",
        type=Path,
        metavar="LIB.so",
        help="TensorRT: load plugins from this library before parsing and running, as trtexec's "
        "--staticPlugins does; repeatable",
    )
    group.add_argument(
        CONFIG_SCRIPT,
        metavar="SCRIPT.py[:FUNCTION]",
        help="TensorRT: have postprocess_config(builder, network, config) of this script, or the "
        "FUNCTION, change the builder's configuration, as in Polygraphy: refit, version or "
        "hardware compatibility, weight streaming, DLA",
    )
    add_custom_ops(group)
    group.add_argument(
        "--io-types",
        choices=IO_TYPES,
        default="model",
        help="fp16: model.mixed.onnx takes and gives FP16 where the model has FP32 (model)",
    )
    group.add_argument(
        "--build-timeout",
        metavar="TIME",
        help=f"a build that takes longer counts as timed out ({timeout})",
    )


def add_custom_ops(group: argparse._ActionsContainer) -> None:
    """Add the flag that teaches ONNX Runtime more operators."""
    group.add_argument(
        CUSTOM_OPS,
        action="append",
        type=Path,
        metavar="LIB.so",
        help="ONNX Runtime: register the operators of this library in every session; repeatable",
    )


def to_engine_settings(parsed: argparse.Namespace) -> EngineSettings:
    """Return the settings that the parsed flags ask for. Raises UsageError."""
    return EngineSettings(
        typing=parsed.typing or "auto",
        guard_islands=parsed.guard_islands is not False,
        tf32=bool(parsed.tf32),
        compute_capability=parsed.compute_capability,
        workspace_mib=parsed.workspace,
        optimization_level=parsed.builder_optimization_level,
        min_shapes=parse_shapes(parsed.min_shapes or (), "--min-shapes"),
        opt_shapes=parse_shapes(parsed.opt_shapes or (), "--opt-shapes"),
        max_shapes=parse_shapes(parsed.max_shapes or (), "--max-shapes"),
        ort_options=parse_ort_options(parsed.ort_option or ()),
        plugins=libraries(parsed.plugins),
        ort_custom_ops=libraries(parsed.ort_custom_ops),
        io_types=parsed.io_types,
        config_script=script(parsed.trt_config_postprocess_script),
        build_timeout_s=None if parsed.build_timeout is None else duration(parsed.build_timeout),
    )


def flagged(parsed: argparse.Namespace) -> frozenset[str]:
    """Return the fields of the settings that flags give, of a parser with `as_in_run`."""
    renamed = {
        "workspace_mib": "workspace",
        "optimization_level": "builder_optimization_level",
        "ort_options": "ort_option",
        "config_script": "trt_config_postprocess_script",
        "build_timeout_s": "build_timeout",
    }
    names = [each.name for each in fields(EngineSettings)]
    given = (name for name in names if getattr(parsed, renamed.get(name, name)) is not None)
    return frozenset(given)


def as_in_run(parser: argparse.ArgumentParser) -> None:
    """Have engine flags that are left out say nothing: a finished run tells how it was."""
    parser.set_defaults(typing=None, guard_islands=None, tf32=None)


def libraries(given: Sequence[Path] | None) -> tuple[Path, ...]:
    """Return libraries that a flag names, each once, by paths that hold in any folder."""
    return tuple(dict.fromkeys(path.absolute() for path in given or ()))


def script(given: str | None) -> str | None:
    """Return a script and its function by a path that holds in any folder."""
    if given is None:
        return None
    path, function = script_and_function(given)
    return f"{path.absolute()}:{function}"
