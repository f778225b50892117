"""How engines are built: what a TensorRT or ONNX Runtime user would pass to their own tool."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from precision_bisect.errors import UsageError
from precision_bisect.settings.flags import check, flag, flag_name
from precision_bisect.settings.reading import (
    CUSTOM_OPS,
    PLUGINS,
    check_libraries,
    check_script,
    duration,
    libraries,
    parse_shapes,
    script,
)

ORT_OPTION = "--ort-option"
BACKEND_OPTION = "--backend-option"
_SWITCH = ("0", "1")
# Any whole number.
_ANY_NUMBER: tuple[str, ...] = ()
CUDA_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "use_tf32": _SWITCH,
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "cudnn_conv_use_max_workspace": _SWITCH,
    "cudnn_conv1d_pad_to_nc1d": _SWITCH,
    "prefer_nhwc": _SWITCH,
    "fuse_conv_bias": _SWITCH,
    "sdpa_kernel": _ANY_NUMBER,
    "enable_skip_layer_norm_strict_mode": _SWITCH,
    "tunable_op_enable": _SWITCH,
    "tunable_op_tuning_enable": _SWITCH,
    "tunable_op_max_tuning_duration_ms": _ANY_NUMBER,
    "do_copy_in_default_stream": _SWITCH,
    "use_ep_level_unified_stream": _SWITCH,
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
    "gpu_mem_limit": _ANY_NUMBER,
}
"""What each may be. Left out: pointers, the device, which --workers names, and CUDA graphs, for
which inputs would have to stay in place."""


def parse_ort_options(texts: Iterable[str], _: str = ORT_OPTION) -> dict[str, str]:
    """Parse `KEY=VALUE`, each of another key. Raises UsageError."""
    options = _pairs(texts, ORT_OPTION, "use_tf32=0")
    check_ort_options(options)
    return options


def parse_backend_options(texts: Iterable[str], _: str = BACKEND_OPTION) -> dict[str, str]:
    """Parse `KEY=VALUE`, each of another key. Raises UsageError."""
    return _pairs(texts, BACKEND_OPTION, "host=user@board")


def _pairs(texts: Iterable[str], flag_: str, example: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"{flag_} cannot read {text!r}", f"write {flag_} {example}")
        if key in options:
            raise UsageError(f"{flag_} is given twice for {key}", "keep one")
        options[key] = value
    return options


def check_ort_options(options: Mapping[str, str]) -> None:
    """Raise UsageError for an option that ONNX Runtime does not have, and for a wrong value."""
    for key, value in options.items():
        if key not in CUDA_OPTIONS:
            raise UsageError(
                f"{ORT_OPTION} {key!r} is no option of ONNX Runtime's CUDA provider that results "
                "may depend on",
                f"choose {', '.join(CUDA_OPTIONS)}",
            )
        allowed = CUDA_OPTIONS[key]
        fits = value in allowed if allowed else re.fullmatch(r"[0-9]{1,18}", value)
        if not fits:
            what = f"choose {' or '.join(allowed)}" if allowed else "give a whole number"
            raise UsageError(f"{ORT_OPTION} {key} cannot be {value!r}", what)


TypingName: TypeAlias = Literal["auto", "strong", "weak"]
IoTypes: TypeAlias = Literal["model", "fp16"]
Tf32: TypeAlias = Literal["auto", "on", "off"]

_engine = partial(flag, "engine")
_CAPABILITY = re.compile(r"\d{1,3}\.\d{1,3}")

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
SHAPES = ("min_shapes", "opt_shapes", "max_shapes")
LARGEST_BATCH = 2**16
"""No batch to time is larger. A bound on memory."""
LARGEST = 2**40
"""No size, and no number of MiB, is larger."""
NOT_TOLD = (
    *("plugins", "ort_custom_ops", "config_script"),
    *("build_timeout_s", "backend_options"),
)
"""Settings that no result tells: files, of which it has hashes, and what decides no verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of every engine of a run.

    `typing`: write the precision into the graph (strong), or mark layers (weak, TensorRT 8.6 to
    10.x); auto takes strong where the library can. `guard_islands`: take the maximum of the FP32
    input of a kept MatMul, Gemm or Conv that stands alone and itself, so that builders do not turn
    it back into half.
    `compute_capability`: as "8.6", to build for another GPU than the one at hand. `workspace_mib`
    in MiB; `optimization_level` 0 to 5; None leaves the library's default. The three shapes are
    the dynamic-shape profile, as in trtexec. `ort_options` are the user's own of ONNX Runtime's
    CUDA provider, before those of this package. `plugins` are libraries of TensorRT plugins,
    `ort_custom_ops` of operators for ONNX Runtime. `config_script` is SCRIPT.py[:FUNCTION], which
    changes TensorRT's builder configuration. `backend_options` say how a backend reaches what it
    needs, and decide no verdict. `io_types`: "fp16" has what is judged and exported
    take and give FP16 where the model has FP32. `time_batch` is the batch that is timed.
    `build_timeout_s`: seconds after which a build counts as timed out. Raises UsageError for
    values that cannot work.
    """

    typing: TypingName = _engine(
        "auto",
        "strong: types in the graph (TensorRT 10, 11, RTX); weak: layers are marked (8.6 to"
        " 10.x); auto: strong where possible ({})",
    )
    guard_islands: bool = _engine(
        True,
        "put Max(x, x) before a kept MatMul, Gemm or Conv that stands alone, which TensorRT "
        "would turn back into half (on)",
    )
    tf32: Tf32 = _engine(
        "auto",
        "TF32 in what stays FP32; auto: searched without, deployed with it where that holds ({})",
    )
    ort_options: Mapping[str, str] = _engine(
        dict,
        "judge with this option of ONNX Runtime's CUDA provider, as "
        "cudnn_conv_algo_search=EXHAUSTIVE; repeatable",
        name="--ort-option",
        metavar="KEY=VALUE",
        gather=parse_ort_options,
    )
    compute_capability: str | None = _engine(
        None, "TensorRT-RTX: build for this GPU, such as 8.9; without one here 8.6", metavar="X.Y"
    )
    min_shapes: Shapes = _engine(
        dict,
        "TensorRT: as trtexec's (the samples' own)",
        metavar="NAME:1x3x224x224",
        gather=parse_shapes,
    )
    opt_shapes: Shapes = _engine(
        dict,
        "TensorRT: as trtexec's (the samples' own)",
        metavar="NAME:1x3x224x224",
        gather=parse_shapes,
    )
    max_shapes: Shapes = _engine(
        dict,
        "TensorRT: as trtexec's (the samples' own)",
        metavar="NAME:1x3x224x224",
        gather=parse_shapes,
    )
    optimization_level: int | None = _engine(
        None,
        "TensorRT: 0 to 5 (3)",
        name="--builder-optimization-level",
        metavar="N",
        least=0,
        most=5,
    )
    workspace_mib: int | None = _engine(
        None, "TensorRT: workspace limit", metavar="MIB", least=1, most=LARGEST
    )
    plugins: tuple[Path, ...] = _engine(
        (),
        "TensorRT: load plugins from this library, as trtexec's --staticPlugins; repeatable",
        metavar="LIB.so",
        gather=libraries,
    )
    config_script: str | None = _engine(
        None,
        "TensorRT: its postprocess_config(builder, network, config), or FUNCTION, configures "
        "the builder, as in Polygraphy",
        name="--trt-config-postprocess-script",
        metavar="SCRIPT.py[:FUNCTION]",
        read=script,
    )
    ort_custom_ops: tuple[Path, ...] = _engine(
        (),
        "ONNX Runtime: register the operators of this library; repeatable",
        metavar="LIB.so",
        gather=libraries,
    )
    io_types: IoTypes = _engine(
        "model", "fp16: FP16 inputs and outputs where the model has FP32 ({})"
    )
    backend_options: Mapping[str, str] = _engine(
        dict,
        "of the backend; remote has host=USER@HOST[,...], trtexec=PATH, folder=DIR and "
        "ssh-config=FILE; repeatable",
        name=BACKEND_OPTION,
        metavar="KEY=VALUE",
        gather=parse_backend_options,
    )
    time_batch: int | None = _engine(
        None,
        "time plans, or estimate it, at this batch: the samples in turn along the first axis "
        "(the samples' own)",
        metavar="N",
        least=1,
        most=LARGEST_BATCH,
    )
    build_timeout_s: float | None = _engine(
        None,
        "a build that takes longer has timed out (no limit; verify: 30m)",
        metavar="TIME",
        read=duration,
        positive=True,
    )

    def __post_init__(self) -> None:
        check(self)
        check_ort_options(self.ort_options)
        capability = self.compute_capability
        if capability is not None and not _CAPABILITY.fullmatch(capability):
            raise UsageError(f"--compute-capability cannot be {capability!r}", "write it as 8.9")
        check_libraries(self.plugins, PLUGINS)
        check_libraries(self.ort_custom_ops, CUSTOM_OPS)
        if self.config_script is not None:
            check_script(self.config_script)
        own = self.ort_options.get("use_tf32")
        # Both say one thing: neither is overruled in silence.
        if own is not None and self.tf32 != "auto" and self.in_tf32 != (own == "1"):
            raise UsageError(
                f"--tf32 {self.tf32} and --ort-option use_tf32={own} exclude each other",
                "keep one",
            )
        if (self.min_shapes or self.max_shapes) and not self.opt_shapes:
            raise UsageError(
                "--min-shapes and --max-shapes need --opt-shapes", "give all three, as to trtexec"
            )
        for name in SHAPES:
            for shape in getattr(self, name).values():
                if not all(0 < size < LARGEST for size in shape):
                    raise UsageError(
                        f"{flag_name(name)} has {tuple(shape)}", "give sizes above zero"
                    )

    @property
    def in_tf32(self) -> bool:
        """Whether engines that are searched run FP32 products in TF32."""
        return self.tf32 == "on"
