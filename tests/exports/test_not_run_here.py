"""Exported files that this ONNX Runtime cannot run, or that are not the answer."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.shape_inference import infer_shapes

import precision_bisect
from final_screens import screen
from models import normal, parse, save, with_weights
from precision_bisect.errors import ExitCode
from precision_bisect.exports import write as mixed
from precision_bisect.exports.fitting_files import Unfit, fit
from precision_bisect.exports.recheck import STORED
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.typed_graph import TypedGraph
from precision_bisect.precisions import LowName
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.saved import read_saved
from precision_bisect.runs.runfolder import MIXED_MODEL, RUN_SCRIPT

SCATTER = """(float[4] x) => (float[4] y)
    <int64[3] i = {0, 0, 1}, float[3] u = {0.5, 0.5, 0.5}> { a = Tanh(x)
    [sum] b = ScatterElements<axis = 0, reduction = "add">(a, i, u)
    [top] c = ScatterElements<axis = 0, reduction = "max">(b, i, u) y = Sigmoid(c) }"""


def rewired(typed: TypedGraph) -> None:
    """Have the last operator compute something else."""
    node = next(each for each in reversed(typed.proto.graph.node) if each.op_type == "Sigmoid")
    node.op_type = "Tanh"


def ill_typed(typed: TypedGraph) -> None:
    """Have a node read FP16 and FP32."""
    casts = {n.output[0]: n.input[0] for n in typed.proto.graph.node if n.op_type == "Cast"}
    (node,) = [each for each in typed.proto.graph.node if each.op_type == "Add"]
    node.input[1] = casts[node.input[1]]


BODY = """({kind}[n,4] x) => (float[n,4] y) {{ f = Cast<to = 1>(x) a = Exp(f) b = Add(a, f)
    y = Sigmoid(b) }}"""


@pytest.mark.parametrize(
    ("kind", "low"), [("float", "fp16"), ("string", "fp16"), ("float", "bf16")]
)
@pytest.mark.parametrize(
    ("damage", "outcome", "said"),
    [
        (rewired, "differs", "it computes something else than what was judged: error "),
        (ill_typed, "broken", "it does not open: "),
    ],
)
def test_a_file_that_is_not_the_answer_ends_the_run_otherwise(
    damage: Callable[[TypedGraph], None],
    outcome: str,
    said: str,
    kind: str,
    low: LowName,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the inputs: another exit code, said first, and no step that uses the file."""

    def damaged(typed: TypedGraph, path: Path, *, again: bool = False) -> None:
        damage(typed)
        save_typed(typed, path, again=again)

    monkeypatch.setattr(mixed, "save_typed", damaged)
    path = save(parse(BODY.format(kind=kind), opset=19), tmp_path)
    x = np.array([["1.5", "2", "-1", "0"]], object)
    found = precision_bisect.find(
        path,
        inputs=[{"x": x if kind == "string" else x.astype(np.float32)}],
        threads=1,
        tol=2e-2,
        low=low,
        out=tmp_path / "run",
    )
    assert found.refuted is not None
    assert (Status.NOTHING_TO_KEEP, outcome) == (found.status, found.refuted.outcome)
    assert found.refuted.message.startswith(said)
    assert ExitCode.BAD_EXPORT is found.exit_code
    assert found.exit_code is read_saved(tmp_path / "run").result.exit_code
    _, first, *rest = screen(found).splitlines()
    assert first.startswith(f"Do not use {MIXED_MODEL}: {said[:20]}")
    steps = "\n".join(rest).partition("Next:")[2]
    assert not [file for file in (RUN_SCRIPT, "polygraphy", "trtexec.sh") if file in steps]


def not_judged(found: Result) -> str:
    """Return what the last check says of files on which it has no verdict."""
    assert found.rechecked is not None
    assert ("not_judged", ExitCode.OK) == (found.rechecked.outcome, found.exit_code)
    return found.rechecked.message


def test_what_this_library_cannot_run_is_not_broken(tmp_path: Path) -> None:
    """A kernel that ONNX Runtime's CPU lacks is told, and nothing is said to fit."""
    path = save(parse(SCATTER, opset=18), tmp_path)
    found = precision_bisect.find(
        path, inputs=[{"x": normal(4)}], threads=1, tol=1e-2, out=tmp_path / "run"
    )
    kinds = {
        each.type.tensor_type.elem_type
        for each in infer_shapes(onnx.load(tmp_path / "run" / MIXED_MODEL)).graph.value_info
        if each.name == "b"
    }
    if kinds != {onnx.TensorProto.FLOAT16}:
        pytest.skip("the scatter is kept")
    message = not_judged(found)
    assert "was not run: ONNX Runtime's CPU does not run it: sum: " in message
    assert "fits" not in message


def test_what_this_library_writes_out_wrongly_is_not_broken(tmp_path: Path) -> None:
    """Without a kernel of Clip in BF16 it takes ONNX's function, whose Where has no BF16 then."""
    body = "(float[4] x) => (float[4] y) { a = Clip(x, low) y = Tanh(a) }"
    model = with_weights(parse(body, opset=13), {"low": np.array(0.1, np.float32)})
    found = precision_bisect.find(
        save(model, tmp_path),
        inputs=[{"x": normal(4)}],
        threads=1,
        tol=5e-2,
        low="bf16",
        out=tmp_path / "run",
    )
    message = not_judged(found)
    assert "of operator (Where) in node ()" in message
    assert "fits" not in message
    # Such a node of the file itself is a fault of the file.
    typed = onnx.load(tmp_path / "run" / MIXED_MODEL)
    clip = next(node for node in typed.graph.node if node.op_type == "Clip")
    where = onnx.helper.make_node("Where", ["never", *clip.input], clip.output)
    never = onnx.numpy_helper.from_array(np.array(False), "never")
    typed.graph.node[list(typed.graph.node).index(clip)].CopyFrom(where)
    typed.graph.initializer.append(never)
    onnx.save(typed, tmp_path / "run" / MIXED_MODEL)
    with pytest.raises(Unfit, match=r"it does not open: .* of operator \(Where\) in node \(\)"):
        fit(tmp_path / "run", STORED, tmp_path)


def test_an_output_of_unknown_rank_is_not_broken(tmp_path: Path) -> None:
    """ONNX's own check wants the shape of every end; ONNX Runtime runs such a file."""
    model = parse("(float[4] x) => (float[4] y) { a = Tanh(x) y = Sigmoid(a) }")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    found = precision_bisect.find(
        save(model, tmp_path), inputs=[{"x": normal(4)}], threads=1, tol=1e-2, out=tmp_path / "run"
    )
    message = not_judged(found)
    assert "opens and runs in a fresh process" in message
