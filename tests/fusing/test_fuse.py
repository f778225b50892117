"""Putting norms together changes nothing in FP32 and removes the need for it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import precision_bisect
from effort import examples
from models import OVERFLOW, load_text, parse, save, save_external
from norm_spellings import (
    AXES,
    GELUS,
    SOFTMAXES,
    SPELLINGS,
    activation,
    group_norm,
    large,
    layer_norm,
    saved,
)
from precision_bisect import PrecisionBisectError
from precision_bisect.graphs.fp32_outputs import reference_outputs
from precision_bisect.graphs.fusing.fuse import fuse
from precision_bisect.graphs.fusing.norms import find_decomposed
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.protocols import Sample

FUSED = {
    "layernorm": (layer_norm(), 17, "LayerNormalization", 17),
    "channels": (layer_norm(axis=1), 17, "LayerNormalization", 17),
    "older": (layer_norm(), 13, "LayerNormalization", 17),
    "rmsnorm": (layer_norm(centred=False), 17, "RMSNormalization", 23),
    "groupnorm": (group_norm(), 17, "GroupNormalization", 21),
}


def fused_alike(
    model: Model, feeds: Sequence[Sample], folder: Path, *, rtol: float, atol: float
) -> Model:
    """Fuse a model, and check that it gives what it gave before."""
    reference = reference_outputs(model, feeds)
    new, _ = fuse(model, feeds, reference, folder)
    (found,) = reference_outputs(new, feeds)
    np.testing.assert_allclose(found["y"], reference[0]["y"], rtol=rtol, atol=atol)
    return new


@examples(15)
@given(
    spelling=st.sampled_from(SPELLINGS),
    seed=st.integers(0, 2**16),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_fused_norms_compute_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    spelling: tuple[str, str, str, int],
    seed: int,
    scale: float,
) -> None:
    """In every spelling the fused model gives what the original gives, in FP32."""
    folder = tmp_path_factory.mktemp("fused")
    model = load_text(layer_norm(*spelling), folder, opset=AXES[spelling[2]])
    new = fused_alike(model, large(scale, seed), folder, rtol=1e-4, atol=1e-5)
    assert "LayerNormalization" in [node.op_type for node in new.proto.graph.node]


@pytest.mark.parametrize("body", [*SOFTMAXES.values(), *GELUS.values()])
def test_fused_activations_compute_the_same(tmp_path: Path, body: str) -> None:
    """Softmax and Gelu in one operator give what their pieces give."""
    model = load_text(activation(body), tmp_path)
    new = fused_alike(model, large(1.0), tmp_path, rtol=1e-5, atol=1e-6)
    assert 3 == len(new.table.layers)


@pytest.mark.parametrize(
    ("text", "opset", "kind", "raised"),
    [
        pytest.param(*case, id=name, marks=() if name == "older" else pytest.mark.nightly)
        for name, case in FUSED.items()
    ],
)
def test_fusing_removes_the_kept_layers(
    tmp_path: Path, text: str, opset: int, kind: str, raised: int
) -> None:
    """What overflows in pieces needs nothing kept as one operator, at the opset that has it."""
    path = saved(text, tmp_path, opset)
    before = precision_bisect.find(path, inputs=large(), out=tmp_path / "a", threads=1)
    after = precision_bisect.find(
        path, inputs=large(), out=tmp_path / "b", threads=1, fuse_norms=True
    )
    assert before.kept
    assert [] == after.kept
    assert "nothing-to-keep" == after.status.value.replace("_", "-")
    written = onnx.load(tmp_path / "b" / "model.fused.onnx")
    onnx.checker.check_model(written)
    assert kind in [node.op_type for node in written.graph.node]
    assert raised == written.opset_import[0].version
    assert any(note.startswith(f"fused 1 {kind}: ") for note in after.notes)
    assert "model=$here/model.fused.onnx" in (tmp_path / "b" / "trtexec.sh").read_text()


def test_a_run_over_a_fused_model_is_resumed(tmp_path: Path) -> None:
    """The fused model is the same every time, so its ledger is taken up again."""
    path = saved(f"{layer_norm()}".replace("y = Mul(b, half)", "c = Mul(b, b) y = Mul(c, half)"),
                 tmp_path)  # fmt: skip
    options = {"inputs": large(), "out": tmp_path / "run", "threads": 1, "fuse_norms": True}
    first = precision_bisect.find(path, **options)  # type: ignore[arg-type]
    again = precision_bisect.find(path, resume=True, **options)  # type: ignore[arg-type]
    assert first.kept == again.kept
    assert first.fingerprint == again.fingerprint


def test_a_ladder_searches_the_fused_model(tmp_path: Path) -> None:
    """Over a ladder, too, the model is fused first, and lies in the run folder."""
    path = saved(layer_norm(), tmp_path)
    options = {"inputs": large(), "out": tmp_path / "run", "threads": 1, "fuse_norms": True}
    found = precision_bisect.find(path, ladder=("fp16", "fp32"), **options)  # type: ignore[arg-type]
    assert [] == found.kept
    assert (tmp_path / "run" / "model.fused.onnx").is_file()


def test_large_weights_pass_through(tmp_path: Path) -> None:
    """Weights beside the graph are in the fused file, with their values."""
    text = layer_norm().replace("y = Mul(b, half)", "k = MatMul(b, weight) y = Mul(k, half)")
    proto = parse(text)
    weight = np.random.default_rng(0).standard_normal((6, 6 * 100)).astype(np.float32)
    square = weight @ weight.T
    big = np.tile(square, (1, 1)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(big, "weight"))
    model = load_model(save_external(proto, tmp_path))
    fused_alike(model, large(1.0), tmp_path, rtol=1e-4, atol=1e-3)


def test_a_wrong_fusion_is_refused(tmp_path: Path) -> None:
    """A fused model that computes something else is refused before anything is searched."""
    model = load_text(layer_norm(), tmp_path)
    samples = large(1.0)
    (reference,) = reference_outputs(model, samples)
    wrong = [{"y": reference["y"] * 1.01}]
    with pytest.raises(PrecisionBisectError, match="differs from the original") as caught:
        fuse(model, samples, wrong, tmp_path)
    assert "--fuse-norms" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OVERFLOW, "has no norm"),
        ("(float16[2] x) => (float16[2] y) { y = Mul(x, x) }", "has no norm"),
    ],
)
def test_nothing_to_fuse_is_said(tmp_path: Path, text: str, message: str) -> None:
    """A model without pieces ends with one line, in whatever type it is."""
    model = load_text(text, tmp_path)
    with pytest.raises(PrecisionBisectError, match=message):
        fuse(model, [], [], tmp_path)


def test_what_is_read_elsewhere_stays(tmp_path: Path) -> None:
    """A piece that something else reads stays beside the operator, under its name."""
    text = layer_norm().replace("(float[2,4,6] y) <", "(float[2,4,6] y, float[2,4,6] d) <")
    model = load_model(save(parse(text), tmp_path))
    samples = large(1.0)
    reference = reference_outputs(model, samples)
    new, _ = fuse(model, samples, reference, tmp_path)
    (found,) = reference_outputs(new, samples)
    assert {"y", "d"} == set(found)
    np.testing.assert_array_equal(found["d"], reference[0]["d"])


def test_kinds_without_a_known_size_are_left(tmp_path: Path) -> None:
    """A norm over channels whose number nobody knows cannot be written, and is left."""
    from precision_bisect.graphs.fusing.fuse import is_fusable

    (found,) = find_decomposed(load_text(layer_norm(), tmp_path))
    assert is_fusable(found)
    assert not is_fusable(dataclasses.replace(found, size=None))
