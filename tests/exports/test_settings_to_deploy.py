"""TF32 is on in what is deployed where it changes nothing, or has held: one function decides."""

from pathlib import Path
from typing import Any

import pytest

from models import parse, save
from precision_bisect.exports.settings_to_deploy import settings_to_deploy
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.typed.pinning import pin
from precision_bisect.layer_table import LayerName
from precision_bisect.options import Options
from precision_bisect.plan import Plan
from precision_bisect.precisions import HighName, Pair
from precision_bisect.settings.engine_settings import EngineSettings

PRODUCTS = {
    "MatMul": "(float[4, 4] x) => (float[4, 4] y) { [p] t = MatMul(x, x) [r] y = Sqrt(t) }",
    "a depthwise Conv": "(float[1, 4, 8, 8] x, float[4, 1, 3, 3] w) => (float[1, 4, 6, 6] y) "
    "{ [p] t = Conv<group = 4>(x, w) [r] y = Sqrt(t) }",
    "LSTM": "(float[2, 1, 4] x, float[1, 8, 4] w, float[1, 8, 2] r) => (float[2, 1, 1, 2] y) "
    "{ [p] t = LSTM<hidden_size = 2>(x, w, r) [r] y = Sqrt(t) }",
}
BRANCH = """(float[4, 4] x, bool c) => (float[4, 4] y) {
  [p] t = If(c) <then_branch = a () => (float[4, 4] u) { u = MatMul(x, x) },
                 else_branch = b () => (float[4, 4] v) { v = Identity(x) }>
  [r] y = Sqrt(t) }"""


def is_on(
    text: str,
    folder: Path,
    *keep: str,
    backend: str = "emulated",
    held: bool = False,
    high: HighName = "fp32",
    pinned: str = "",
    **engine: Any,
) -> bool:
    """Return whether TF32 is on where a plan is deployed that keeps these layers."""
    model = load_model(save(parse(text, domains='"com.microsoft": 1'), folder))
    if pinned:
        model = pin(model, {LayerName(pinned): "it cannot run low"})
    options = Options(model=model.path, high=high, engine=EngineSettings(**engine))
    plan = Plan.of(model.table.names.index(LayerName(name)) for name in keep)
    pair = Pair(low="fp16", high=high)
    return settings_to_deploy(options, backend, model, pair, plan, held=held).in_tf32


@pytest.mark.parametrize("text", PRODUCTS.values(), ids=PRODUCTS)
def test_it_is_on_where_no_product_stays_fp32(text: str, tmp_path: Path) -> None:
    """Also of products that were not seen to be in TF32: another engine may round them."""
    assert is_on(text, tmp_path)
    assert is_on(text, tmp_path, "r")
    assert not is_on(text, tmp_path, "p")
    assert not is_on(text, tmp_path, pinned="p")


def test_what_a_body_or_someone_elses_operator_multiplies_is_not_known(tmp_path: Path) -> None:
    """The bodies of If and Loop have no layers; an operator of other domains may be anything."""
    assert not is_on(BRANCH, tmp_path, "r")
    other = PRODUCTS["MatMul"].replace("MatMul", "com.microsoft.FusedMatMul")
    assert not is_on(other, tmp_path, "r")


@pytest.mark.parametrize(
    "told",
    [{"tf32": "off"}, {"ort_options": {"use_tf32": "0"}}, {"backend": "onnxruntime"}],
    ids=str,
)
def test_it_stays_off_where_it_was_asked_for_or_an_engine_judged(
    told: dict[str, Any], tmp_path: Path
) -> None:
    """What an engine has judged without TF32 was other kernels of FP16, too."""
    assert not is_on(PRODUCTS["MatMul"], tmp_path, **told)


def test_what_held_with_it_has_it(tmp_path: Path) -> None:
    """As its trial was."""
    assert is_on(PRODUCTS["MatMul"], tmp_path, "p", held=True, backend="onnxruntime")
