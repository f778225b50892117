"""Which samples are run, and which outputs pass."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from precision_bisect.errors import UsageError
from precision_bisect.plugins import COMPARATORS, installed
from precision_bisect.settings.check_words import READY_MADE
from precision_bisect.settings.flags import flag
from precision_bisect.settings.image_options import ImageOptions
from precision_bisect.settings.reading import limits, named_path, parse_ranges, parse_shapes

if TYPE_CHECKING:
    from precision_bisect.protocols import Sample

DEFAULT_TOLERANCE = 1e-2
DEFAULT_METRIC = "elementwise"
Limits: TypeAlias = float | Mapping[str, float] | None
ENGINE_REFERENCE = Path("engine")
"""What `--reference` says for the outputs of the backend's own engine with every layer in FP32."""
WIDE = 0.1
"""From here on a limit for both kinds is an absolute one alone, as `--help` says: a relative error
of 100% is no limit."""
_inputs = partial(flag, "inputs")
_verdict = partial(flag, "verdict")


def relative_of(limit: float) -> float:
    """Return the relative limit that one for both kinds of errors sets: itself, or none."""
    return limit if limit < WIDE else 0.0


@dataclass(frozen=True, kw_only=True)
class SampleOptions(ImageOptions):
    """The samples, and how they are judged.

    `inputs` may be the samples themselves, too, `check` the function, and `metric` what makes the
    comparator. `tol` applies to every limit that `atol` and `rtol` do not set. `reference` is None
    to have ONNX Runtime compute the FP32 outputs.
    """

    inputs: "Path | Sequence[Sample] | None" = _inputs(
        None,
        "a folder of images, of .npz, .npy or .bin, or one such file; trtexec's NAME:FILE; "
        "Polygraphy's .json (run --save-inputs); a .py with load_data(). Of many the hardest are "
        "searched with, and all judge the answer. Without it inputs are made up",
        metavar="PATH",
        read=named_path,
    )
    reference: Path | None = _inputs(
        None,
        "the FP32 outputs of --inputs instead of ONNX Runtime's own: a .npz or a folder of them, "
        "by output name, or Polygraphy's .json (run --save-outputs); `engine` for those of the "
        "backend's own engine in FP32",
        metavar="PATH",
    )
    input_shapes: Mapping[str, tuple[int, ...]] = _inputs(
        dict,
        "shapes for inputs with dynamic dimensions that are made up, or read from .bin files; "
        "comma separated or repeated",
        metavar="NAME:1x3x224x224",
        gather=parse_shapes,
    )
    ranges: Mapping[str, tuple[float, float]] = _inputs(
        dict,
        "between which values an input may lie: the answer is tried at both ends, where the error"
        " of an operator grows with the input; comma separated or repeated",
        name="--range",
        metavar="NAME=0:999",
        gather=parse_ranges,
    )
    synthetic: int = _inputs(4, "how many to make up ({})", metavar="N", least=1)
    holdout: int = _inputs(
        0,
        "judge the answer by N distinct samples, drawn at random, which never join the search "
        "({})",
        metavar="N",
        least=0,
    )
    tol: Limits = _verdict(
        None,
        f"tolerance of all outputs, or per output as logits=1e-2,boxes=0.5 (default "
        f"{DEFAULT_TOLERANCE:g}). Below {WIDE:g} an element passes that is within T absolutely or "
        f"relatively, from {WIDE:g} on only absolutely. Integer and boolean outputs must be "
        "equal; classes=0.02 lets that share of their elements differ, and from 1 on T is a limit "
        "for integers that are rounded floats, as pixels are",
        metavar="T",
        gather=limits,
    )
    atol: Limits = _verdict(
        None, "absolute limits alone, written as --tol's", metavar="T", gather=limits
    )
    rtol: Limits = _verdict(
        None, "relative limits alone, written as --tol's", metavar="T", gather=limits
    )
    metric: str | Callable[..., Any] = _verdict(
        DEFAULT_METRIC,
        "the comparator; those that come along are Polygraphy's ({}). The tolerance of l2 is the "
        "norm, of cosine 1 - cosine, of psnr and snr the least decibels",
        choices=lambda: installed(COMPARATORS),
    )
    quantile: float = _verdict(
        0.99, "for --metric quantile ({})", metavar="Q", positive=True, most=1
    )
    check: str | Callable[..., float | bool] | None = _verdict(
        None,
        f"judge by what counts in the task: {', '.join(READY_MADE)}, of all outputs or of some "
        "(top1:logits). Or by SCRIPT.py:FUNCTION, a function(outputs, reference) of lists of "
        "dicts over all samples, which returns an error for --tol, or True or False",
        metavar="CHECK",
    )


def check_limits(limits: Limits, name: str, *, zero: bool) -> None:
    """Raise UsageError for a limit that is no finite number above zero, or from zero up."""
    for output, limit in (limits if isinstance(limits, Mapping) else {"": limits}).items():
        if limit is None:
            continue
        if not isinstance(limit, Real) or isinstance(limit, bool):
            raise UsageError(
                f"{name} cannot be {limits!r}",
                "give a number, or a dict of numbers by output name",
            )
        if trouble := _trouble(float(limit), zero=zero):
            what = f"{output}={limit}" if output else limit
            raise UsageError(f"--{name} {what} is {trouble}", "give a positive tolerance")


def _trouble(limit: float, *, zero: bool) -> str:
    """Return why a number cannot be a limit, or "" where it can."""
    if limit > 0 or (zero and limit == 0):
        return "not finite" if math.isinf(limit) else ""
    return "no number from zero up" if zero else "not above zero"
