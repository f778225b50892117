"""Which layers are candidates for INT8 and FP8, and what is said of the others."""

from pathlib import Path

import pytest

from ladder_model import QUANTIZABLE, write
from models import load_text
from precision_bisect.commandline.main import main
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.typed.pinning import pin_formless, pinned_layers, pinned_remarks
from precision_bisect.layer_table import Exclusion, assigned
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair

INT8_IN_FP16 = Pair(low="int8", high="fp16")


def test_only_products_and_convolutions_are_candidates(tmp_path: Path) -> None:
    """The others stay high, in one sentence for all of them."""
    model = pin_formless(load_model(write(tmp_path)), INT8_IN_FP16)
    assert tuple(QUANTIZABLE) == model.table.names
    assert {"no INT8 kernel"} == set(pinned_layers(model).values())
    assert ["5 layers stay FP16: no INT8 kernel (the first is stretch)"] == pinned_remarks(
        model, "fp16"
    )
    precisions = assigned(model.table, INT8_IN_FP16, Plan.of((1,)))
    assert ["int8", "fp16", "fp16", "fp16", "fp16", "fp16", "fp16", "int8"] == list(
        precisions.values()
    )


def test_computed_weights_of_a_convolution_cannot_be_quantized(tmp_path: Path) -> None:
    """Engines quantize constant kernels only; products of two activations they do quantize."""
    model = load_text(
        """(float[1,1,4,4] x, float[1,1,1,1] k) => (float[1,1,4,4] y) {
            [conv] c = Conv(x, k) [mm] y = MatMul(c, x) }""",
        tmp_path,
    )
    model = pin_formless(model, INT8_IN_FP16)
    assert {"conv": "computed weights, INT8 needs constants"} == pinned_layers(model)
    assert ("mm",) == model.table.names


def test_what_has_no_high_form_is_fp32(tmp_path: Path) -> None:
    """Mish has no BF16 form in engines, so under BF16 it computes in FP32."""
    body = "(float[2,2] x) => (float[2,2] y) { s = Mish(x) y = MatMul(s, x) }"
    pair = Pair(low="int8", high="bf16")
    model = pin_formless(load_text(body, tmp_path, opset=22), pair)
    (first, _) = model.table.layers
    assert Exclusion.PINNED is first.exclusion
    assert ["fp32", "int8"] == list(assigned(model.table, pair, Plan.of(())).values())


def test_layers_command_takes_the_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`layers --low int8` lists what a search for INT8 would decide on."""
    assert 0 == main(["layers", str(write(tmp_path)), "--low", "int8"])
    assert "3 candidates of 8 nodes" in capsys.readouterr().out
