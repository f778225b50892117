"""How engines are built: what a TensorRT or ONNX Runtime user would pass to their own tool."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from precision_bisect.errors import UsageError
from precision_bisect.settings.ort_options import check_ort_options
from precision_bisect.settings.user_libraries import (
    CUSTOM_OPS,
    PLUGINS,
    check_libraries,
    check_script,
)

TypingName: TypeAlias = Literal["auto", "strong", "weak"]
TYPINGS: tuple[TypingName, ...] = get_args(TypingName)
IoTypes: TypeAlias = Literal["model", "fp16"]
IO_TYPES: tuple[IoTypes, ...] = get_args(IoTypes)

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
NOT_TOLD = ("plugins", "ort_custom_ops", "config_script", "io_types", "build_timeout_s")
"""Settings that no result tells: files, of which it has hashes, and what decides no verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of every engine of a run.

    `typing`: write the precision into the graph (strong), or mark layers (weak, TensorRT 8.6 to
    10.x); auto takes strong where the library can. `guard_islands`: add zero to the FP32 input of
    a kept MatMul, Gemm or Conv that stands alone, so that builders do not turn it back into half.
    `compute_capability`: as "8.6", to build for another GPU than the one at hand. `workspace_mib`
    in MiB; `optimization_level` 0 to 5; None leaves the library's default. The three shapes are
    the dynamic-shape profile, as in trtexec. `ort_options` are the user's own of ONNX Runtime's
    CUDA provider, before those of this package. `plugins` are libraries of TensorRT plugins,
    `ort_custom_ops` of operators for ONNX Runtime. `config_script` is SCRIPT.py[:FUNCTION], which
    changes TensorRT's builder configuration. `io_types`: "fp16" has the exported typed model take
    and give FP16 where the model has FP32. `build_timeout_s`: seconds after which a build
    counts as timed out. Raises UsageError for values that cannot work.
    """

    typing: TypingName = "auto"
    guard_islands: bool = True
    tf32: bool = False
    compute_capability: str | None = None
    workspace_mib: int | None = None
    optimization_level: int | None = None
    min_shapes: Shapes = field(default_factory=dict)
    opt_shapes: Shapes = field(default_factory=dict)
    max_shapes: Shapes = field(default_factory=dict)
    ort_options: Mapping[str, str] = field(default_factory=dict)
    plugins: tuple[Path, ...] = ()
    ort_custom_ops: tuple[Path, ...] = ()
    config_script: str | None = None
    io_types: IoTypes = "model"
    build_timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.typing not in TYPINGS:
            raise UsageError(f"--typing cannot be {self.typing!r}", f"choose {', '.join(TYPINGS)}")
        if self.io_types not in IO_TYPES:
            raise UsageError(f"--io-types cannot be {self.io_types!r}", "choose model or fp16")
        level = self.optimization_level
        if level is not None and not 0 <= level <= 5:
            raise UsageError(f"--builder-optimization-level {level} is not within 0 to 5")
        if self.workspace_mib is not None and self.workspace_mib < 1:
            raise UsageError(f"--workspace {self.workspace_mib} is below 1 MiB")
        if self.build_timeout_s is not None and not self.build_timeout_s > 0:
            raise UsageError(f"--build-timeout {self.build_timeout_s} is not above zero")
        check_ort_options(self.ort_options)
        check_libraries(self.plugins, PLUGINS)
        check_libraries(self.ort_custom_ops, CUSTOM_OPS)
        if self.config_script is not None:
            check_script(self.config_script)
        if self.tf32 and self.ort_options.get("use_tf32", "1") != "1":
            raise UsageError("--tf32 and --ort-option use_tf32=0 exclude each other", "keep one")
        if (self.min_shapes or self.max_shapes) and not self.opt_shapes:
            raise UsageError(
                "--min-shapes and --max-shapes need --opt-shapes", "give all three, as to trtexec"
            )
