"""Images become inputs as asked, and what the code in use may do otherwise is said."""

import io
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from effort import examples
from models import load_text
from precision_bisect.commandline.main import main
from precision_bisect.errors import InputError, PrecisionBisectError
from precision_bisect.graphs.load import load_model
from precision_bisect.judging.inputs.input_files import read_samples
from precision_bisect.judging.inputs.sample_sources import Source, open_source
from precision_bisect.options import Options

NCHW = "(float[1, 3, 4, 6] image) => (float[1, 3, 4, 6] y) { y = Relu(image) }"
WIDTH, HEIGHT = 6, 4
NAFNET = Path(__file__).parents[2] / "examples/nafnet"


def pixels(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return random pixels."""
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def folder_of(folder: Path, *images: Image.Image) -> Path:
    """Write images as .png, in this order, and return their folder."""
    place = folder / "photos"
    place.mkdir(exist_ok=True)
    for number, image in enumerate(images):
        image.save(place / f"{number}.png")
    return place


def opened(path: Path, signature: str = NCHW, **flags: Any) -> Source:
    """Open what a path holds for a model of this signature."""
    folder = path.parent if path.is_file() else path
    model = load_text(signature, folder.parent)
    return open_source(Options(model=model.path, inputs=path, **flags), path, model)


def refused(path: Path, signature: str = NCHW, **flags: Any) -> PrecisionBisectError:
    """Return the error that opening the path ends with: one line that says what to do."""
    with pytest.raises(PrecisionBisectError) as caught:
        opened(path, signature, **flags)
    assert caught.value.hint
    assert "\n" not in caught.value.one_line()
    return caught.value


@examples(15)
@given(
    layout=st.sampled_from(["nchw", "nhwc"]),
    channels=st.sampled_from(["rgb", "bgr"]),
    dtype=st.sampled_from(["float", "float16", "double"]),
    scale=st.sampled_from([None, 1.0, 1 / 255, 2.5]),
    mean=st.lists(st.floats(-200, 200), min_size=3, max_size=3),
    std=st.lists(st.floats(0.1, 100), min_size=1, max_size=1) | st.just([0.229, 0.224, 0.225]),
    batch=st.sampled_from([1, 2, "N"]),
    count=st.integers(1, 3),
    said=st.booleans(),
)
def test_an_input_is_what_numpy_makes_of_the_pixels(
    tmp_path_factory: pytest.TempPathFactory,
    layout: str,
    channels: str,
    dtype: str,
    scale: float | None,
    mean: list[float],
    std: list[float],
    batch: int | str,
    count: int,
    said: bool,
) -> None:
    """Scaled, less the mean, by the deviation; then the order, the layout, and the batch."""
    raw = [pixels(HEIGHT, WIDTH, 3, seed=seed) for seed in range(count)]
    path = folder_of(tmp_path_factory.mktemp("images"), *map(Image.fromarray, raw))
    dims = f"{batch}, 3, 4, 6" if layout == "nchw" else f"{batch}, 4, 6, 3"
    source = opened(
        path,
        f"({dtype}[{dims}] image) => ({dtype}[{dims}] y) {{ y = Relu(image) }}",
        scale=scale,
        mean=tuple(mean),
        std=tuple(std),
        channels=channels,
        layout=layout if said else None,
    )
    expected = [(each * (1.0 if scale is None else scale) - mean) / std for each in raw]
    if channels == "bgr":
        expected = [each[:, :, [2, 1, 0]] for each in expected]
    if layout == "nchw":
        expected = [each.transpose(2, 0, 1) for each in expected]
    each = batch if isinstance(batch, int) else 1
    assert -(-count // each) == len(source.placed)
    for number, sample in enumerate(source.placed.values()):
        wanted = [expected[(number * each + k) % count] for k in range(each)]
        (kind,) = {array.dtype for array in sample.values()}
        np.testing.assert_array_equal(np.stack(wanted).astype(kind), sample["image"])


def test_gray_inputs_and_inputs_without_a_batch(tmp_path: Path) -> None:
    """One channel, three axes, and pixels as they are for an input of uint8."""
    raw = pixels(HEIGHT, WIDTH)
    path = folder_of(tmp_path, Image.fromarray(raw))
    gray = "(float[1, 4, 6] image) => (float[1, 4, 6] y) { y = Relu(image) }"
    (sample,) = opened(path, gray, scale=1 / 255, mean=(0.5,)).placed.values()
    np.testing.assert_array_equal((raw / 255 - 0.5).astype(np.float32), sample["image"][0])
    whole = "(uint8[1, 4, 6, 1] image) => (float[1, 4, 6, 1] y) { y = Cast<to = 1>(image) }"
    (sample,) = opened(path, whole).placed.values()
    np.testing.assert_array_equal(raw, sample["image"][0, :, :, 0])
    assert "takes pixels as they are" in refused(path, whole, scale=1 / 255).message
    assert "and the input one channel" in refused(path, gray, mean=(1.0, 2.0, 3.0)).message


def test_sizes_that_the_model_leaves_open(tmp_path: Path) -> None:
    """They are asked for; images are resized by Pillow's bilinear filter, which is said."""
    image = Image.fromarray(pixels(10, 20, 3))
    path = folder_of(tmp_path, image)
    signature = "(float[N, 3, H, W] image) => (float[N, 3, H, W] y) { y = Relu(image) }"
    assert "give --image-size 640" in refused(path, signature).hint
    source = opened(path, signature, image_size=(8, 6))
    (sample,) = source.placed.values()
    expected = np.asarray(image.resize((8, 6), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    np.testing.assert_array_equal(expected[None].astype(np.float32), sample["image"])
    (remark,) = source.remarks
    assert "stretched to another ratio" in remark
    assert [] == opened(path, signature, image_size=(10, 5)).remarks
    assert "takes images of 6x4" in refused(path, image_size=(8, 6)).message
    unknown = "(float[N, C, H, W] image) => (float[N, C, H, W] y) { y = Relu(image) }"
    assert "--layout nchw or" in refused(path, unknown, image_size=(8, 6)).hint
    assert 1 == len(opened(path, unknown, image_size=(8, 6), layout="nhwc").placed)
    wide = "(float[N, C, H, 8] image) => (float[N, C, H, 8] y) { y = Relu(image) }"
    (sample,) = opened(path, wide, image_size=(8, 6)).placed.values()
    assert (1, 3, 6, 8) == sample["image"].shape
    assert "makes 6 channels" in refused(path, layout="nhwc").message


def test_letterbox_and_crop(tmp_path: Path) -> None:
    """One keeps the whole image between borders, the other its middle; both keep the ratio."""
    path = folder_of(tmp_path, Image.new("RGB", (12, 4), (9, 9, 9)))
    for value in (114, 0, 255):
        given: dict[str, Any] = {} if value == 114 else {"pad_value": value}
        (sample,) = opened(path, resize="letterbox", **given).placed.values()
        expected = np.full((HEIGHT, WIDTH), value, np.float32)
        expected[1:3] = 9
        np.testing.assert_array_equal(np.stack([expected] * 3)[None], sample["image"])
    raw = pixels(4, 12, 3)
    source = opened(folder_of(tmp_path, Image.fromarray(raw)), resize="crop")
    (sample,) = source.placed.values()
    np.testing.assert_array_equal(raw[:, 3:9].transpose(2, 0, 1), sample["image"][0])
    assert [] == source.remarks
    assert "--pad-value is of --resize letterbox" in refused(path, pad_value=3).message


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("unit", 0, 1),
        ("inception", 0.5, 0.5),
        ("imagenet", [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ],
)
def test_normalizations_by_name(name: str, mean: Any, std: Any, tmp_path: Path) -> None:
    """They are what torchvision and timm do; the run's record has their numbers."""
    raw = pixels(HEIGHT, WIDTH, 3)
    path = folder_of(tmp_path, Image.fromarray(raw))
    source = opened(path, normalize=name)
    (sample,) = source.placed.values()
    expected = ((raw / 255 - mean) / std).transpose(2, 0, 1).astype(np.float32)
    np.testing.assert_allclose(expected, sample["image"][0], rtol=1e-6)
    assert (None, 1 / 255) == (source.options.normalize, source.options.scale)
    assert "--normalize sets --scale" in refused(path, normalize=name, mean=(1.0,)).message


def test_patterns_and_a_folder_for_each_class(tmp_path: Path) -> None:
    """Images lie as data sets have them; a folder whose name is a pattern is a folder."""
    model = load_text(NCHW, tmp_path)
    for name in ("cats/1.png", "dogs/1.png", "dogs/2.png"):
        place = tmp_path / "[val]" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(HEIGHT, WIDTH, 3)).save(place)
        np.savez(place.with_suffix(".npz"), image=np.zeros((1, 3, HEIGHT, WIDTH), np.float32))
    for pattern, count in (("[val]", 3), ("?val?/*/1.png", 2), ("?val?/**/*.npz", 3)):
        path = tmp_path / pattern
        source = open_source(Options(model=model.path, inputs=path), path, model)
        assert count == len(source.placed)
    assert "matches no file" in refused(tmp_path / "*.jpg").message


def test_a_size_that_fits_the_strides_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Halved twice and enlarged again, an image must have sides of multiples of 4."""
    monkeypatch.chdir(tmp_path)
    body = (
        "(float[1, 3, H, W] x) => (float[1, 3, H2, W2] y) <float[4] s = {1, 1, 2, 2}> {"
        " a = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)"
        " b = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(a)"
        ' u = Resize(b, "", s) y = Add(a, u) }'
    )
    load_text(body, tmp_path)
    folder_of(tmp_path, Image.fromarray(pixels(20, 20, 3)))
    command = ["model.onnx", "--inputs", "photos", "--normalize", "unit", "--image-size"]
    assert 2 == main([*command, "14x6"])
    assert "--image-size 16x8 was tried and fits: multiples of 4" in capsys.readouterr().err
    assert 2 != main([*command, "16x8"])


@pytest.mark.parametrize("shape", ["1, 4, 8, 8", "1, 3, 0, 8", "3, 8", "1, 3, 8, 8, 8"])
def test_inputs_that_take_no_images(shape: str, tmp_path: Path) -> None:
    """They are answered with a loader."""
    path = folder_of(tmp_path, Image.fromarray(pixels(HEIGHT, WIDTH, 3)))
    signature = f"(float[{shape}] image) => (float[{shape}] y) {{ y = Relu(image) }}"
    assert "def load_data():" in refused(path, signature).further


def rotated(kind: int) -> Image.Image:
    """Return an image whose EXIF data say how it is to be turned."""
    image = Image.fromarray(pixels(WIDTH, HEIGHT, 3))
    image.getexif()[0x0112] = kind
    return image


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (Image.fromarray(pixels(HEIGHT, WIDTH)), "are gray, repeated for red"),
        (Image.fromarray(pixels(HEIGHT, WIDTH, 4)), "have an alpha channel, which"),
        (Image.fromarray(pixels(HEIGHT, WIDTH, 2), "LA"), "have an alpha channel, which"),
        (rotated(6), "are turned as their EXIF data say"),
        (Image.fromarray(pixels(HEIGHT, WIDTH, 3)).convert("P"), ""),
    ],
    ids=["gray", "alpha", "gray and alpha", "turned", "palette"],
)
def test_what_code_in_use_may_do_otherwise_is_said(
    image: Image.Image, said: str, tmp_path: Path
) -> None:
    """Such images are read, and counted in a remark."""
    path = folder_of(tmp_path, Image.fromarray(pixels(HEIGHT, WIDTH, 3)), image)
    if image.getexif():
        image.save(path / "1.png", exif=image.getexif())
    source = opened(path)
    assert 2 == len(source.placed)
    assert bool(said) == any(
        f"1 of 2 images ({path / '1.png'}) {said}" in each for each in source.remarks
    )


def test_an_image_is_turned_as_its_data_say(tmp_path: Path) -> None:
    """Orientation 6 is a quarter to the right."""
    path = folder_of(tmp_path)
    image = rotated(6)
    image.save(path / "a.png", exif=image.getexif())
    (sample,) = opened(path).placed.values()
    upright = np.rot90(np.asarray(image), -1).transpose(2, 0, 1)
    np.testing.assert_array_equal(upright.astype(np.float32), sample["image"][0])


def _text(file: Path) -> None:
    file.write_text("no image")


def _truncated(file: Path) -> None:
    data = io.BytesIO()
    Image.fromarray(pixels(64, 64, 3)).save(data, "PNG")
    file.write_bytes(data.getvalue()[:5000])


def _large(file: Path) -> None:
    Image.new("1", (80, 80)).save(file)


def _deep(file: Path) -> None:
    Image.fromarray(pixels(HEIGHT, WIDTH).astype(np.uint16) * 257).save(file)


def _deep_colours(file: Path) -> None:
    """Write a PNG of 16 bits for each colour, which Pillow reads but does not write."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = b"".join(b"\0" + bytes(6 * WIDTH) for _ in range(HEIGHT))
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 16, 2, 0, 0, 0)
    file.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def _ink(file: Path) -> None:
    Image.fromarray(pixels(HEIGHT, WIDTH, 4), "CMYK").save(file, "JPEG")


def _empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (_text, "is no image, whatever its name says; leave it out"),
        (_truncated, "cannot read"),
        (_large, "more pixels than Pillow takes for harmless; save it smaller"),
        (_deep, "more than 8 bits for each value"),
        (_deep_colours, "more than 8 bits for each value"),
        (_ink, "is CMYK, not RGB"),
        (_empty, "is no image"),
    ],
)
def test_images_that_are_not_read(
    write: Callable[[Path], None], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is one line with the file and what to do, also of many that are read when asked for."""
    # Pillow's own limit: an image of more pixels is not read.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5000)
    path = folder_of(tmp_path, *[Image.fromarray(pixels(HEIGHT, WIDTH, 3))] * 70)
    write(path / "9.png")
    with pytest.raises(InputError) as caught:
        list(opened(path).placed.values())
    line = caught.value.one_line()
    assert f"{path / '9.png'}" in line and said in line and "\n" not in line
    assert caught.value.hint


@examples(25)
@given(
    place=st.integers(0, 10**6), value=st.integers(0, 255), kind=st.sampled_from(["PNG", "JPEG"])
)
def test_damaged_images(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int, kind: str
) -> None:
    """A damaged image is read or refused in one line, never anything else."""
    data = io.BytesIO()
    Image.fromarray(pixels(HEIGHT, WIDTH, 3)).save(data, kind)
    changed = bytearray(data.getvalue())
    changed[place % len(changed)] = value
    path = tmp_path_factory.mktemp("damaged") / "a.jpg"
    path.write_bytes(changed)
    try:
        opened(path)
    except PrecisionBisectError as error:
        assert error.hint and "\n" not in error.one_line()


def test_many_images_are_read_when_asked_for(tmp_path: Path) -> None:
    """Also in a child process, which is sent where they lie."""
    path = folder_of(tmp_path, *[Image.fromarray(pixels(HEIGHT, WIDTH, 3))] * 70)
    samples = pickle.loads(pickle.dumps(opened(path).placed))
    (path / "69.png").unlink()
    with pytest.raises(InputError, match="cannot read"):
        samples[f"{path / '69.png'}"]
    assert 70 == len(samples)


def test_the_example_as_pictures(tmp_path: Path) -> None:
    """Its samples, saved with 8 bits, come back to half a step."""
    model = load_model(NAFNET / "nafnet.onnx")
    arrays = [each["image"] for each in read_samples(NAFNET / "inputs", ["image"])[:2]]
    bytes_ = [np.clip(each[0] * 255, 0, 255).round().astype(np.uint8) for each in arrays]
    path = folder_of(tmp_path, *[Image.fromarray(each.transpose(1, 2, 0)) for each in bytes_])
    source = open_source(Options(model=model.path, inputs=path, scale=1 / 255), path, model)
    for array, sample in zip(arrays, source.placed.values(), strict=True):
        near = np.abs(np.clip(array, 0, 1) - sample["image"]).max()
        assert near <= 0.5001 / 255


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how to install it."""
    path = folder_of(tmp_path, Image.fromarray(pixels(HEIGHT, WIDTH, 3)))
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "pip install pillow" == refused(path).hint


def test_flags_of_images_without_images(tmp_path: Path) -> None:
    """They are refused by name, and so are --input-shapes beside images, and several kinds."""
    image = Image.fromarray(pixels(HEIGHT, WIDTH, 3))
    np.save(tmp_path / "a.npy", np.zeros((1, 3, 4, 6), np.float32))
    said = refused(tmp_path / "a.npy", scale=1 / 255).one_line()
    assert "--scale is for images, and" in said and "leave it out" in said
    path = folder_of(tmp_path, image)
    assert "--input-shapes is for" in refused(path, input_shapes={"image": (1, 3, 4, 6)}).message
    np.save(path / "a.npy", np.zeros((1, 3, 4, 6), np.float32))
    assert "has both image and .npy files" in refused(path).message
