"""The outcome of FP32 itself under ONNX Runtime's own options, in the words of a warning.

These options allow TF32, whose products have 10 bits of mantissa, as many as FP16's. So do trtexec
and TensorRT. TF32 keeps the range of FP32, but not its digits.
"""

from precision_bisect.results.deployment import Recheck

_TF32 = "use_tf32="


def warning_of(high: Recheck, tolerance: float | None) -> str:
    """Return what to do if the model fails with every layer high; "" if it does not.

    `high` has the outcomes under the options of the run, and under the library's own.
    """
    defaults = high.library_defaults
    if high.outcome != "pass" or defaults is None or defaults.outcome != "fail":
        return ""
    off = "does not open" if defaults.error is None else f"is off by {defaults.error:.4g}"
    limit = "" if tolerance is None or defaults.error is None else f", tolerance {tolerance:g}"
    cure = f"set {' and '.join(defaults.options)} where it is deployed"
    if not any(option.startswith(_TF32) for option in defaults.options):
        return (
            f"with ONNX Runtime's default options the FP32 model itself {off}{limit}, whatever is "
            f"kept: {cure}"
        )
    return (
        f"with TF32, which ONNX Runtime, trtexec and TensorRT allow by default, the FP32 model "
        f"itself {off}{limit}, whatever is kept: {cure} (trtexec --noTF32); layers kept for their "
        "rounding gain nothing under TF32"
    )
