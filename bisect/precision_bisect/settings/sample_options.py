"""Which samples are run, how images become samples, and which outputs pass."""

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from precision_bisect.errors import UsageError
from precision_bisect.plugins import COMPARATORS, installed
from precision_bisect.settings.check_words import READY_MADE
from precision_bisect.settings.flags import flag, flag_name
from precision_bisect.settings.loop_options import LoopOptions
from precision_bisect.settings.reading import (
    check_ranges,
    limits,
    named_path,
    parse_ranges,
    parse_shapes,
)

if TYPE_CHECKING:
    from precision_bisect.protocols import Sample


Layout: TypeAlias = Literal["nchw", "nhwc"]
Channels: TypeAlias = Literal["rgb", "bgr"]
Resize: TypeAlias = Literal["stretch", "letterbox", "crop"]
Normalization: TypeAlias = Literal["unit", "imagenet", "inception", "clip"]
RGB = 3
"""Channels of a picture in colour."""
LETTERBOX_GRAY = 114
"""What Ultralytics and YOLOX put beside a picture."""
# Mean and deviation of pixels from 0 to 1, as torchvision, timm and OpenAI's CLIP have them.
_NORMALIZATIONS: Mapping[Normalization, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "unit": ((), ()),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "inception": ((0.5,), (0.5,)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
}
_SIZE = re.compile(r"(\d+)(?:x(\d+))?")
_images = partial(flag, "images")


def _number(text: str) -> float:
    """Return a number or a quotient of two, such as 1/255. Raises ValueError."""
    above, slash, below = text.partition("/")
    try:
        return float(above) / float(below) if slash else float(text)
    except ZeroDivisionError as error:
        raise ValueError(text) from error


def _scale(text: str) -> float:
    try:
        return _number(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is no number; write 1/255") from error


def _size(text: str) -> tuple[int, int]:
    """Return width and height; of one number, a square."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is no size; write 640, or 640x480 for width x height")
    return int(match[1]), int(match[2] or match[1])


def _of_channels(texts: Sequence[str], name: str) -> tuple[float, ...]:
    """Return the numbers of a flag, comma separated or repeated. Raises UsageError."""
    parts = [part for text in texts for part in text.split(",")]
    try:
        return tuple(map(_number, parts))
    except ValueError as error:
        raise UsageError(
            f"{name} cannot read {','.join(texts)!r}", f"write {name} 0.485,0.456,0.406"
        ) from error


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """How images become an input: (pixel * scale - mean) / std, by channel.

    Pixels are from 0 to 255. `image_size` is (width, height). `mean` and `std` are of red, green,
    blue, or one number for all, and empty for none; `normalize` names all three. None leaves it to
    the model's own shape, and the rest to its default.
    """

    image_size: tuple[int, int] | None = _images(
        None,
        "what images are resized to (the model's)",
        metavar="WIDTH[xHEIGHT]",
        read=_size,
        brief="of images, with --normalize and --resize",
    )
    resize: Resize | None = _images(
        None, "of other ratios: letterbox pads, crop takes the middle (stretch)"
    )
    pad_value: int | None = _images(
        None,
        f"the pixels that a letterbox adds, 0 to 255 ({LETTERBOX_GRAY})",
        metavar="N",
        least=0,
        most=255,
    )
    normalize: Normalization | None = _images(
        None, "--scale, --mean and --std by name: unit is 0 to 1, inception -1 to 1"
    )
    scale: float | None = _images(
        None,
        "an input is (pixel * scale - mean) / std, of pixels from 0 to 255 (1)",
        metavar="1/255",
        read=_scale,
    )
    mean: Sequence[float] = _images(
        tuple, "of scaled pixels, red first (0)", metavar="R,G,B", gather=_of_channels
    )
    std: Sequence[float] = _images(
        tuple, "of scaled pixels, red first (1)", metavar="R,G,B", gather=_of_channels
    )
    layout: Layout | None = _images(None, "where an input has its channels (as its shape)")
    channels: Channels | None = _images(None, "their order in the input (rgb)")


def unnormalized(options: ImageOptions) -> bool:
    """Tell whether nothing says how pixels become values."""
    return (options.normalize, options.scale) == (None, None) and not (options.mean or options.std)


def normalized(options: ImageOptions) -> tuple[float, Sequence[float], Sequence[float]]:
    """Return the scale, the means and the deviations that options ask for, none as they are."""
    if options.normalize is not None:
        return 1 / 255, *_NORMALIZATIONS[options.normalize]
    return 1.0 if options.scale is None else float(options.scale), options.mean, options.std


def given_image_flags(options: ImageOptions) -> dict[str, str]:
    """Return what is set of how images are read, by field, as the flags have it."""
    values = {setting.name: getattr(options, setting.name) for setting in fields(ImageOptions)}
    if options.image_size is not None:
        values["image_size"] = "x".join(map(str, options.image_size))
    for name in ("mean", "std"):
        values[name] = ",".join(map(str, values[name]))
    return {name: str(value) for name, value in values.items() if value not in (None, "")}


def check_images(options: ImageOptions) -> Iterator[tuple[bool, str, str]]:
    """Yield whether a value cannot work, how that is said, and what to do."""
    numbered = options.scale is not None or bool(options.mean) or bool(options.std)
    twice = options.normalize is not None and numbered
    yield twice, "--normalize sets --scale, --mean and --std", "leave one out"
    unpadded = options.pad_value is not None and options.resize != "letterbox"
    yield unpadded, "--pad-value is of --resize letterbox", "give both"
    size, scale = options.image_size, options.scale
    # Python callers give what they like.
    sides: object = size
    pair = isinstance(sides, Sequence) and len(sides) == 2 and {int} == {*map(type, sides)}
    bad = size is not None and not (pair and min(size) > 0)
    yield bad, f"image_size cannot be {size!r}", "give --image-size 640, or 640x480"
    bad = scale is not None and not (math.isfinite(scale) and scale)
    yield bad, f"--scale {scale} makes no input of a pixel", "give --scale 1/255, or 1"
    for name, zero in (("mean", True), ("std", False)):
        values = getattr(options, name)
        listed = isinstance(values, Sequence) and not isinstance(values, str)
        of_channels = listed and len(values) in (0, 1, RGB)
        numbers = of_channels and all(isinstance(number, int | float) for number in values)
        fine = numbers and all(math.isfinite(number) and (zero or number) for number in values)
        text = ",".join(map(str, values)) if listed else repr(values)
        what = "finite numbers" if zero else "finite numbers other than 0"
        hint = f"give one of {what}, or three: red, green, blue"
        yield not fine, f"{flag_name(name)} cannot be {text}", hint


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


def snr_of(share: float) -> str:
    """Return the flags that judge an error by this share of the norm of the output."""
    return f"--metric snr --tol {-20 * math.log10(share):.0f}"


def relative_of(limit: float) -> float:
    """Return the relative limit that one for both kinds of errors sets: itself, or none."""
    return limit if limit < WIDE else 0.0


@dataclass(frozen=True, kw_only=True)
class SampleOptions(ImageOptions, LoopOptions):
    """The samples, and how they are judged.

    `inputs` may be the samples themselves, too, `check` the function, and `metric` what makes the
    comparator. `tol` applies to every limit that `atol` and `rtol` do not set. `reference` is None
    to have ONNX Runtime compute the FP32 outputs.
    """

    inputs: "Path | Iterable[Sample] | None" = _inputs(
        None,
        "images, .npz, .npy or .bin: a file, a folder, a pattern, or NAME:FILE; Polygraphy's "
        ".json; a .py with load_data(); without it inputs are made up",
        metavar="PATH",
        read=named_path,
        brief="images, .npz, .npy, .bin: a file, folder, pattern",
    )
    reference: Path | None = _inputs(
        None,
        "FP32 outputs of --inputs instead of ONNX Runtime's: .npz by output name, a folder of "
        "them, Polygraphy's .json, or `engine`: the backend's own",
        metavar="PATH",
    )
    input_shapes: Mapping[str, tuple[int, ...]] = _inputs(
        dict,
        "of made-up inputs and .bin files, where the model leaves them open; repeatable",
        metavar="NAME:1x3x224x224",
        gather=parse_shapes,
        brief="of inputs with dynamic dimensions",
    )
    ranges: Mapping[str, tuple[float, float]] = _inputs(
        dict,
        "the smallest and the largest value of an input: if an error grows with it, the "
        "answer is tried at both; repeatable",
        name="--range",
        metavar="NAME=0:999",
        gather=parse_ranges,
    )
    synthetic: int = _inputs(4, "how many inputs to make up ({})", metavar="N", least=1)
    holdout: int = _inputs(
        0, "judge the answer by N random samples that choose nothing ({})", metavar="N", least=0
    )
    tol: Limits = _verdict(
        None,
        "tolerance of all outputs, or of each: logits=1e-2,boxes=0.5; absolute or relative "
        f"below {WIDE:g}, else absolute. Integers must be equal: classes=0.02 lets that share "
        f"differ, from 1 on it is a limit ({DEFAULT_TOLERANCE:g})",
        metavar="T",
        gather=limits,
        brief="the largest error, also by output (0.01)",
    )
    atol: Limits = _verdict(None, "absolute limits alone, as --tol's", metavar="T", gather=limits)
    rtol: Limits = _verdict(None, "relative limits alone, as --tol's", metavar="T", gather=limits)
    metric: str | Callable[..., Any] = _verdict(
        DEFAULT_METRIC,
        "the comparator; of psnr and snr the tolerance is the least decibels ({})",
        choices=lambda: installed(COMPARATORS),
        brief="elementwise, cosine, psnr, … (elementwise)",
    )
    quantile: float = _verdict(
        0.99, "for --metric quantile ({})", metavar="Q", positive=True, most=1
    )
    check: str | Callable[..., float | bool] | None = _verdict(
        None,
        f"judge by {', '.join(READY_MADE)}, of some outputs as top1:logits, or by "
        "SCRIPT.py:FUNCTION, a function(outputs, reference) that returns an error or a bool",
        metavar="CHECK",
        brief="judge by boxes, top1, iou, …, or a script",
    )

    def check_samples(self) -> None:
        """Raise UsageError for samples, shapes and limits of a type that only Python can give."""
        if not isinstance(self.inputs, Path | Iterable | None):
            raise UsageError(
                f"inputs cannot be {self.inputs!r}", "give a path, a dict of arrays, or several"
            )
        if not all(isinstance(shape, Sequence) for shape in self.input_shapes.values()):
            raise UsageError(
                f"input_shapes cannot be {self.input_shapes!r}", "give a tuple by input name"
            )
        check_ranges(self.ranges)
        for name in ("tol", "atol", "rtol"):
            # A check of the user's may ask for no error at all.
            zero = name != "tol" or self.check is not None
            check_limits(getattr(self, name), name, zero=zero)


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
