"""Guards after what people do with a file next: simplifiers, then TensorRT-RTX's build."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from effort import nightly
from lone_islands import IN_FP32_ANYWAY, ISLANDS
from precision_bisect.graphs.ort import runtime
from rtx import build_bytes


def slimmed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Run onnxslim."""
    onnxslim = pytest.importorskip("onnxslim")
    found: onnx.ModelProto = onnxslim.slim(model)
    return found


def simplified(model: onnx.ModelProto) -> onnx.ModelProto:
    """Run onnxsim."""
    onnxsim = pytest.importorskip("onnxsim")
    found, valid = onnxsim.simplify(model)
    assert valid
    return found  # type: ignore[no-any-return]


def folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Run the optimizer of onnxscript."""
    optimizer = pytest.importorskip("onnxscript.optimizer")
    found: onnx.ModelProto = optimizer.optimize(model)
    return found


def eliminated(model: onnx.ModelProto) -> onnx.ModelProto:
    """Run every fusion and elimination of onnxoptimizer."""
    onnxoptimizer = pytest.importorskip("onnxoptimizer")
    passes = onnxoptimizer.get_fuse_and_elimination_passes()
    found: onnx.ModelProto = onnxoptimizer.optimize(model, passes)
    return found


def left_alone(model: onnx.ModelProto) -> onnx.ModelProto:
    """Change nothing."""
    return model


Tool = Callable[[onnx.ModelProto], onnx.ModelProto]
TOOLS: Mapping[str, Tool] = {
    "onnxslim": slimmed,
    "onnxsim": simplified,
    "onnxscript": folded,
    "onnxoptimizer": eliminated,
}
DAILY = (
    *("MatMul, weights beyond FP16", "Conv of one dimension"),
    *("at the start, handed over in FP16", "behind a Cast of the file's own"),
)
CHOSEN = [*DAILY, *nightly(*(name for name in ISLANDS if name not in DAILY))]


def lost_after(name: str, tool: Tool, folder: Path, *, guard: bool = True) -> list[str]:
    """Return the FP32 weights that the engine of an island lacks after a tool."""
    path = ISLANDS[name].write(folder, guard=guard)
    onnx.save(tool(onnx.load(path)), folder / "after.onnx")
    return ISLANDS[name].lost(build_bytes(folder / "after.onnx"))


@pytest.mark.parametrize("name", CHOSEN)
def test_an_engine_has_the_weights_in_fp32(tmp_path: Path, name: str) -> None:
    """With a guard every weight is there; without one those of a lone product are not."""
    assert [] == lost_after(name, left_alone, tmp_path)
    bare = lost_after(name, left_alone, tmp_path, guard=False)
    needed = name not in IN_FP32_ANYWAY and bool(ISLANDS[name].weights)
    assert (list(ISLANDS[name].weights) if needed else []) == bare


def test_a_guard_gives_every_value_as_it_is(tmp_path: Path) -> None:
    """NaN, infinities, both zeros, the largest and the smallest: the same bits in ONNX Runtime."""
    model = onnx.load(ISLANDS["Gemm"].write(tmp_path))
    (guard,) = (n for n in model.graph.node if n.name.startswith("precision_bisect/guard/"))
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None])
        for name in (guard.input[0], guard.output[0])
    ]
    del model.graph.node[:], model.graph.input[:], model.graph.output[:]
    model.graph.node.append(guard)
    model.graph.input.append(ends[0])
    model.graph.output.append(ends[1])
    del model.graph.initializer[:], model.graph.value_info[:]
    edges = (np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4028235e38, -3.4028235e38, 1e-45, 1.0)
    values = np.array(edges, np.float32)
    session = runtime().InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {ends[0].name: values})
    assert values.tobytes() == found.tobytes()


@pytest.mark.models
@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
@pytest.mark.parametrize("name", CHOSEN)
def test_simplifiers_leave_it(tmp_path: Path, name: str, tool: Tool) -> None:
    """Whatever a tool makes of the file, the engine has the FP32 weights."""
    assert [] == lost_after(name, tool, tmp_path)
