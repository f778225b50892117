"""Images as the arrays that a model takes: read by Pillow, resized, scaled, laid out."""

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from precision_bisect.errors import InputError, UsageError
from precision_bisect.graphs.types import TensorSpec
from precision_bisect.judging.inputs.input_shapes import show
from precision_bisect.judging.inputs.loader_script import NeedsLoader
from precision_bisect.machine.plain_files import plain_size, too_large
from precision_bisect.machine.user_scripts import first_line
from precision_bisect.protocols import Sample
from precision_bisect.settings.sample_options import (
    LETTERBOX_GRAY,
    RGB,
    ImageOptions,
    Layout,
    SampleOptions,
    normalized,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

IMAGES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
# One thread at a time opens images, for what Python warns of is the process's.
_OPENING = threading.RLock()
# What Pillow may take a file for: its other readers are never run on what others give.
_FORMATS = ("BMP", "JPEG", "PNG", "WEBP")
# How Pillow's modes begin whose values have more than 8 bits.
_DEEP = ("I", "F")
_TRANSPARENT = ("LA", "La", "PA", "RGBA", "RGBa")
_PLAIN = ("1", "L", "P", "RGB")
_EXIF_ROTATION = 0x0112
# Values of it that swap width and height.
_ON_THE_SIDE = (5, 6, 7, 8)
# Ratios of width to height this near are one: sizes are whole numbers.
_SAME_RATIO = 0.02
# The axis of the channels.
_LAYOUTS: dict[Layout, int] = {"nchw": -3, "nhwc": -1}
_FLOATS = ("float16", "float32", "float64")


class Treated(StrEnum):
    """What is done to an image that the code in use may do otherwise."""

    GRAY = "gray"
    COLOUR = "colour"
    TRANSPARENT = "transparent"
    STRETCHED = "stretched"
    ROTATED = "rotated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """What an input takes: `batch` images of `channels`, each `width` by `height`.

    `options` have no None but `normalize` and a `pad_value` that is not needed, and a mean and a
    std for each of red, green, blue. `batched` is False for an input without an axis for the
    batch.
    """

    spec: TensorSpec
    options: ImageOptions
    channels: int
    batch: int = 1
    batched: bool = True

    @property
    def raw(self) -> bool:
        """Whether pixels go in as they are."""
        options = self.options
        return options.scale == 1 and not any(options.mean) and {1.0} == {*options.std}


def of_model(specs: Sequence[TensorSpec], options: SampleOptions) -> Pixels:
    """Return what the one input of the model takes, where the options leave something open.

    Raises UsageError for flags that contradict the model, InputError for what they leave open,
    NeedsLoader for inputs that take no images.
    """
    if len(specs) != 1:
        names = ", ".join(spec.name for spec in specs) or "none"
        raise NeedsLoader(f"images are for one input, and the model's are {names}")
    (spec,) = specs
    shape = spec.shape if spec.shape is not None else (1, None, None, None)
    if len(shape) not in (3, 4) or 0 in shape or spec.dtype not in (*_FLOATS, "uint8"):
        what = f"{spec.dtype or 'of another type'} {show(spec.shape)}"
        raise NeedsLoader(f"input {spec.name!r} takes no images: it is {what}")
    layout = options.layout or _guessed(spec, shape)
    channels = shape[_LAYOUTS[layout]]
    if isinstance(channels, int) and channels not in (1, RGB):
        raise UsageError(
            f"--layout {layout} makes {channels} channels of input {spec.name!r} "
            f"{show(spec.shape)}, and images have 3 or 1",
            "leave it out",
        )
    height, width = shape[-2:] if layout == "nchw" else shape[-3:-1]
    size = _size(spec, (width, height), options.image_size)
    colours = channels if isinstance(channels, int) else RGB
    batch = shape[0] if len(shape) == 4 and isinstance(shape[0], int) else 1
    # Asked before the first image is read: sizes come from a flag or a foreign file.
    if trouble := too_large(8 * batch * colours * size[0] * size[1]):
        what = f"a sample of {batch} images of {size[0]}x{size[1]} takes {trouble}"
        raise InputError(what, "give a smaller --image-size, if the model takes it")
    scale, mean, std = normalized(options)
    image_options = ImageOptions(
        image_size=size,
        resize=options.resize or "stretch",
        pad_value=_pad_value(options),
        scale=scale,
        mean=_three(mean, 0.0),
        std=_three(std, 1.0),
        layout=layout,
        channels=options.channels or "rgb",
    )
    pixels = Pixels(
        spec=spec, options=image_options, channels=colours, batch=batch, batched=len(shape) == 4
    )
    if spec.dtype == "uint8" and not pixels.raw:
        raise UsageError(
            f"input {spec.name!r} is uint8, which takes pixels as they are",
            "leave out --scale, --mean, --std and --normalize",
        )
    if colours == 1 and RGB in (len(mean), len(std)):
        raise UsageError(
            "--mean and --std have three numbers, and the input one channel", "give one number"
        )
    return pixels


def _guessed(spec: TensorSpec, shape: tuple[int | str | None, ...]) -> Layout:
    """Return the layout whose channels are 3, or else 1, or else alone may be.

    The first one where both are.
    """
    for count in (RGB, 1):
        for layout, axis in _LAYOUTS.items():
            if shape[axis] == count:
                return layout
    unknown = [
        candidate for candidate, axis in _LAYOUTS.items() if not isinstance(shape[axis], int)
    ]
    if not unknown:
        raise NeedsLoader(f"input {spec.name!r} {show(spec.shape)} has no 3 or 1 channels")
    if len(unknown) == 1:
        return unknown[0]
    raise InputError(
        f"input {spec.name!r} {show(spec.shape)} does not say where the channels are",
        "give --layout nchw or --layout nhwc",
    )


def _size(
    spec: TensorSpec, own: tuple[int | str | None, ...], size: tuple[int, int] | None
) -> tuple[int, int]:
    if size is None:
        width, height = own
        if not isinstance(width, int) or not isinstance(height, int):
            raise InputError(
                f"input {spec.name!r} {show(spec.shape)} leaves the size of images open",
                "give --image-size 640, or 640x480 for width x height",
            )
        return width, height
    if any(isinstance(has, int) and has != want for has, want in zip(own, size, strict=True)):
        width, height = ("?" if not isinstance(side, int) else side for side in own)
        raise UsageError(
            f"--image-size is {size[0]}x{size[1]}, and input {spec.name!r} takes images of "
            f"{width}x{height}, width x height",
            "leave it out",
        )
    return size


def _pad_value(options: ImageOptions) -> int | None:
    given = LETTERBOX_GRAY if options.pad_value is None else options.pad_value
    return given if options.resize == "letterbox" else None


def _three(values: Sequence[float], default: float) -> tuple[float, ...]:
    numbers = tuple(map(float, values)) or (default,)
    return numbers * RGB if len(numbers) == 1 else numbers


def read_images(pixels: Pixels, files: Sequence[Path]) -> Sample:
    """Return the sample of as many images as the model's batch has. Raises InputError."""
    arrays = [_array(file, pixels) for file in files]
    array = np.stack(arrays) if pixels.batched else arrays[0]
    return {pixels.spec.name: np.ascontiguousarray(array)}


def _array(file: Path, pixels: Pixels) -> NDArray[Any]:
    """Return an image in the model's layout and type."""
    values: NDArray[Any] = _decoded(file, pixels)
    options, count = pixels.options, pixels.channels
    if not pixels.raw and options.scale is not None:
        values = (values * options.scale - np.array(options.mean[:count])) / np.array(
            options.std[:count]
        )
    if options.channels == "bgr":
        values = values[..., ::-1]
    if options.layout == "nchw":
        values = np.moveaxis(values, -1, 0)
    return values.astype(pixels.spec.dtype)


def _decoded(file: Path, pixels: Pixels) -> NDArray[np.uint8]:
    """Return (height, width, channels) of an image, turned and resized. Raises InputError."""
    with _opened(file) as image:
        from PIL import ImageOps

        turned = ImageOps.exif_transpose(image)
        colours = turned.convert("RGB" if pixels.channels == RGB else "L")
        values = np.asarray(_resized(colours, pixels.options))
    return values.reshape(*values.shape[:2], pixels.channels)


def _resized(image: "Image", options: ImageOptions) -> "Image":
    """Return an image of the size that is asked for, by Pillow's bilinear filter."""
    from PIL import ImageOps
    from PIL.Image import Resampling

    size, bilinear = options.image_size, Resampling.BILINEAR
    if size is None or image.size == size:
        return image
    if options.resize == "letterbox":
        value = options.pad_value or 0
        color = value if image.mode == "L" else (value,) * RGB
        return ImageOps.pad(image, size, bilinear, color)
    if options.resize == "crop":
        return ImageOps.fit(image, size, bilinear)
    return image.resize(size, bilinear)


@contextmanager
def _opened(file: Path) -> "Iterator[ImageFile]":
    """Open an image; inside the block, too, whatever is wrong with it raises InputError."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise InputError(
            f"{file} is an image, and Pillow is not installed", "pip install pillow"
        ) from error
    try:
        plain_size(file)
        with _OPENING, warnings.catch_warnings():
            # It also warns of odd metadata, which change no pixel.
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=_FORMATS) as image:
                _refuse_odd(file, image)
                yield image
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise InputError(
            f"{file} has more pixels than Pillow takes for harmless", "save it smaller"
        ) from error
    except UnidentifiedImageError as error:
        raise InputError(
            f"{file} is no image, whatever its name says",
            f"leave it out, or save it as one of {', '.join(_FORMATS)}",
        ) from error
    except InputError:
        raise
    except Exception as error:  # each of Pillow's readers raises its own
        raise InputError(
            f"cannot read {file}: {first_line(error)}", "copy it again, or leave it out"
        ) from error


def _refuse_odd(file: Path, image: "ImageFile") -> None:
    """Raise InputError for pixels that are not converted without a guess, or not at all."""
    # Pillow drops the lower 8 bits of deep colours, and says so only here.
    if image.mode.startswith(_DEEP) or any(";16" in str(tile[3]) for tile in image.tile):
        raise InputError(
            f"{file} has more than 8 bits for each value, and nothing says how to scale them",
            "save it with 8 bits, or give a .py with load_data()",
        )
    if image.mode not in (*_PLAIN, *_TRANSPARENT):
        raise InputError(f"{file} is {image.mode}, not RGB", "convert it as your code would do")
    width, height = image.size
    if trouble := too_large(4 * width * height):
        raise InputError(f"{file} takes {trouble}", "save it smaller, or leave it out")


def treatments(files: Sequence[Path], pixels: Pixels) -> dict[Treated, list[Path]]:
    """Return which images are treated how, by their headers. Raises InputError."""
    files_by_treatment: dict[Treated, list[Path]] = {}
    channels = pixels.channels
    for file in files:
        with _opened(file) as image:
            # Headers alone: no pixel is read for this.
            rotation = image.getexif().get(_EXIF_ROTATION, 1)
            gray = image.mode in ("1", "L", "LA", "La")
            transparent = image.mode in _TRANSPARENT or "transparency" in image.info
            for treated, holds in (
                (Treated.GRAY, gray and channels == RGB),
                (Treated.COLOUR, not gray and channels == 1),
                (Treated.TRANSPARENT, transparent),
                (Treated.ROTATED, rotation != 1),
                (Treated.STRETCHED, _stretched(image.size, rotation, pixels)),
            ):
                if holds:
                    files_by_treatment.setdefault(treated, []).append(file)
    return files_by_treatment


def _stretched(size: tuple[int, int], rotation: int, pixels: Pixels) -> bool:
    if pixels.options.resize != "stretch":
        return False
    width, height = reversed(size) if rotation in _ON_THE_SIDE else size
    wanted, high = pixels.options.image_size or (width, height)
    return abs(width * high / (height * wanted) - 1) > _SAME_RATIO


_TREATMENTS = {
    Treated.GRAY: "are gray, repeated for red, green and blue: leave out what use never sees",
    Treated.COLOUR: "are in colour, made gray by Pillow's weights: others give other values",
    Treated.TRANSPARENT: "have an alpha channel, which is dropped: put them on the background "
    "seen in use",
    Treated.STRETCHED: "are stretched to another ratio of width to height: if the code in use "
    "pads or crops them, give --resize letterbox or crop",
    Treated.ROTATED: "are turned as their EXIF data say: the code in use must do so, too",
}


def treatment_words(treated: Treated, files: Sequence[Path], images: int) -> str:
    """Return what was done, and to how many of the images."""
    others = ", …" if len(files) > 1 else ""
    return f"{len(files)} of {images} images ({files[0]}{others}) {_TREATMENTS[treated]}"
