"""Options of ONNX Runtime's CUDA provider that a user may judge with: names and values."""

import re
from collections.abc import Iterable, Mapping

from precision_bisect.errors import UsageError

FLAG = "--ort-option"
_SWITCH = ("0", "1")
_NUMBER: tuple[str, ...] = ()
"""Any whole number."""
CUDA_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "use_tf32": _SWITCH,
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "cudnn_conv_use_max_workspace": _SWITCH,
    "cudnn_conv1d_pad_to_nc1d": _SWITCH,
    "prefer_nhwc": _SWITCH,
    "fuse_conv_bias": _SWITCH,
    "sdpa_kernel": _NUMBER,
    "enable_skip_layer_norm_strict_mode": _SWITCH,
    "tunable_op_enable": _SWITCH,
    "tunable_op_tuning_enable": _SWITCH,
    "tunable_op_max_tuning_duration_ms": _NUMBER,
    "do_copy_in_default_stream": _SWITCH,
    "use_ep_level_unified_stream": _SWITCH,
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
    "gpu_mem_limit": _NUMBER,
}
"""What each may be. Left out: pointers, the device, which --workers names, and CUDA graphs, for
which inputs would have to stay in place."""


def parse_ort_options(texts: Iterable[str], _: str = FLAG) -> dict[str, str]:
    """Parse `KEY=VALUE`, each of another key. Raises UsageError."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"{FLAG} cannot read {text!r}", f"write {FLAG} use_tf32=0")
        if key in found:
            raise UsageError(f"{FLAG} is given twice for {key}", "keep one")
        found[key] = value
    check_ort_options(found)
    return found


def check_ort_options(options: Mapping[str, str]) -> None:
    """Raise UsageError for an option that ONNX Runtime does not have, and for a wrong value."""
    for key, value in options.items():
        if key not in CUDA_OPTIONS:
            raise UsageError(
                f"{FLAG} {key!r} is no option of ONNX Runtime's CUDA provider that results may "
                "depend on",
                f"choose {', '.join(CUDA_OPTIONS)}",
            )
        allowed = CUDA_OPTIONS[key]
        fits = value in allowed if allowed else re.fullmatch(r"[0-9]{1,18}", value)
        if not fits:
            what = f"choose {' or '.join(allowed)}" if allowed else "give a whole number"
            raise UsageError(f"{FLAG} {key} cannot be {value!r}", what)
