"""The zoo's networks that FP16 is bad at fail where they are said to."""

from pathlib import Path

import pytest

from precision_bisect import find
from zoo.networks import prepare

pytestmark = pytest.mark.models
pytest.importorskip("torch", reason="pip install --group models")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "where", "cause"),
    [
        ("unet", "/steps/", "rounding"),
        ("vision_transformer", "/blocks.2/first/", "overflow"),
        ("decoder_step", "_2/Pow", "overflow"),
    ],
)
def test_the_answer_is_where_it_hurts(tmp_path: Path, name: str, where: str, cause: str) -> None:
    """Sines of timesteps are rounded, squares of massive activations overflow."""
    folder = prepare(name, tmp_path)
    told = find(folder / "model.onnx", tol=1e-2, inputs=folder / "judged", out=tmp_path / "run")
    assert 0 < len(told.kept) < told.candidates / 8
    causes = {each.layer: each.cause for each in told.diagnosis if where in each.layer}
    assert {cause} == set(causes.values())
