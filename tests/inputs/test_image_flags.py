"""Images in folders of folders, and flags of images that cannot work."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from models import load_text
from precision_bisect.errors import InputError, UsageError
from precision_bisect.judging.inputs.sample_sources import open_source
from precision_bisect.options import Options


@pytest.mark.parametrize("depth", ["cats", "train/cats"])
def test_images_of_classes_are_all_read_or_told(tmp_path: Path, depth: str) -> None:
    """A list of labels beside the classes is none of them, one stray image hides none."""
    model = load_text("(float[1, 3, 4, 6] x) => (float[1, 3, 4, 6] y) { y = Relu(x) }", tmp_path)
    place = tmp_path / "set" / depth
    place.mkdir(parents=True)
    for name in ("1.png", "2.png"):
        Image.new("RGB", (6, 4)).save(place / name)
    (tmp_path / "set/labels.txt").write_text("cat")
    options = Options(model=model.path, inputs=tmp_path / "set")
    assert 2 == len(open_source(options, tmp_path / "set", model).placed)
    Image.new("RGB", (6, 4)).save(place.parent / "stray.png")
    with pytest.raises(InputError, match="has images, and so have its folders"):
        open_source(options, place.parent, model)


@pytest.mark.parametrize(
    "flags",
    [
        {"image_size": (0, 3)},
        {"image_size": 640},
        {"scale": 0.0},
        {"scale": float("nan")},
        {"mean": (1.0, 2.0)},
        {"mean": "0.5"},
        {"std": (0.0,)},
        {"std": (1.0, 1.0, float("inf"))},
        {"layout": "hwc"},
    ],
    ids=str,
)
def test_flags_that_cannot_work(flags: dict[str, Any]) -> None:
    """Python's callers get the same one line."""
    good = Options(model=Path("m.onnx"))
    with pytest.raises(UsageError) as caught:
        replace(good, **flags)
    assert caught.value.hint
