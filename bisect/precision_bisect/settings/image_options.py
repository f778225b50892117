"""How the pixels of images become the numbers that a model takes."""

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Literal, TypeAlias

from precision_bisect.errors import UsageError
from precision_bisect.settings.flags import flag, flag_name

Layout: TypeAlias = Literal["nchw", "nhwc"]
Channels: TypeAlias = Literal["rgb", "bgr"]
RGB = 3
"""Channels of a picture in colour."""
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
    blue, or one number for all, and empty for none. None leaves it to the model's own shape, and
    the rest to its default.
    """

    image_size: tuple[int, int] | None = _images(
        None,
        "images are resized to it (the model's own height and width)",
        metavar="WIDTH[xHEIGHT]",
        read=_size,
    )
    scale: float | None = _images(
        None,
        "of images, whose pixels are 0 to 255: an input is (pixel * scale - mean) / std (1)",
        metavar="1/255",
        read=_scale,
    )
    mean: Sequence[float] = _images(
        tuple,
        "what is subtracted from scaled pixels, red first whatever --channels says (0)",
        metavar="R,G,B",
        gather=_of_channels,
    )
    std: Sequence[float] = _images(
        tuple, "what they are then divided by (1)", metavar="R,G,B", gather=_of_channels
    )
    layout: Layout | None = _images(
        None, "where an input has the channels of an image (as the model's shape has them)"
    )
    channels: Channels | None = _images(None, "their order in the input (rgb)")


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
