"""Layers inside Ifs become layers of the model where every sample takes the same branch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from models import load_text, parse, save, with_weights
from precision_bisect import find
from precision_bisect.commandline.listing import as_text
from precision_bisect.errors import ModelError, RunFolderError
from precision_bisect.graphs.fp32_outputs import reference_outputs
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.typed.taken_branches import take_branches
from precision_bisect.protocols import Sample
from precision_bisect.runs.monitoring.events import Event, Warned
from precision_bisect.runs.runfolder import MIXED_MODEL, TAKEN_MODEL

NESTED = """(float[n] x, bool c, int64 k) => (float[m] y, float[n] same, int64 number) <
    float two = {2}> {
    [before] r = Relu(x) d = Neg(r)
    [outer] y, same, number = If (c) <
        then_branch = yes () => (float[n] a, float[n] x1, int64 k1) <
            float e = {0.5}, int64 five = {5}> {
            [square] s = Mul(r, r) t = Add(s, e)
            lots = Greater(k, five) [inner] a = If (lots) <
                then_branch = more () => (float[n] p) { [square] s2 = Mul(t, t) p = Sqrt(s2) },
                else_branch = less () => (float[n] q) { q = Mul(t, two) }>
            [passed] x1 = Identity(x) k1 = Identity(k) },
        else_branch = no () => (float[n] b, float[n] s, int64 k2) <int64 k2 = {7}> {
            [square] s = Mul(d, d) b = Mul(s, s) }> }"""
"""Names repeat among the branches, one of which returns what it reads itself, and a constant."""
SAMPLING = """(float[4] x, int64 rate) => (float[4] y) <int64 fast = {16000}, float k = {0.0001}> {
    c = Equal(rate, fast) [If_0] y = If (c) <
        then_branch = yes () => (float[4] a) {
            [square] s = Mul(x, x) [scale] t = Mul(s, k) [root] a = Sqrt(t) },
        else_branch = no () => (float[4] b) { [square] s = Add(x, x) b = Exp(s) }> }"""
"""All layers are inside an If on an input, as in silero-vad's file."""


def sampling(rate: int = 16000) -> Sample:
    """Return a sample whose square is beyond FP16's range."""
    return {"x": np.array([300, 1, 2, 3], np.float32), "rate": np.array(rate)}


def taken(text: str, folder: Path, samples: Sequence[Sample]) -> tuple[Model, str, list[Sample]]:
    """Return what became of a model, and what the original returns for the samples."""
    model = load_text(text, folder)
    work = folder / "work"
    work.mkdir()
    found, said = take_branches(model, samples, work)
    return found, said, reference_outputs(model, samples, threads=1)


@pytest.mark.parametrize(
    ("c", "k", "layers"),
    [
        (True, 9, ["before", "square", "node_of_t", "square_0", "node_of_p"]),
        (True, 1, ["before", "square", "node_of_t", "node_of_q"]),
        (False, 9, ["before", "node_of_d", "square_1", "node_of_b"]),
    ],
)
def test_a_branch_in_place_computes_as_the_if(
    tmp_path: Path, c: bool, k: int, layers: list[str]
) -> None:
    """Nested branches, tensors from outside and repeated names come out right."""
    sample: Sample = {"x": np.array([1, -2, 3], np.float32), "c": np.array(c), "k": np.array(k)}
    found, said, expected = taken(NESTED, tmp_path, [sample])
    assert "If" not in {node.op_type for node in found.proto.graph.node}
    assert ("2 Ifs (outer, …)" if c else "outer") in said
    assert set(layers) <= set(found.table.names)
    (outputs,) = reference_outputs(found, [sample], threads=1)
    assert {"y", "same", "number"} == set(outputs)
    for name, array in expected[0].items():
        np.testing.assert_array_equal(outputs[name], array)


def test_an_if_stays_where_samples_take_both_branches(tmp_path: Path) -> None:
    """What depends on the sample is no layer, and an If without layers is left alone."""
    found, said, _ = taken(SAMPLING, tmp_path, [sampling(), sampling(8000)])
    assert "" == said
    assert not found.table.candidates


def test_a_model_inside_an_if_is_searched(tmp_path: Path) -> None:
    """The run says so, and leaves the model that it searched, from which others go on."""
    path = save(parse(SAMPLING), tmp_path)
    said: list[Event] = []
    options: dict[str, Any] = {"out": tmp_path / "run", "threads": 1, "observer": said.append}
    result = find(path, inputs=[sampling()], **options)
    assert ["square", "scale"] == result.kept
    (told,) = [e.message for e in said if isinstance(e, Warned) and "If_0" in e.message]
    assert told in result.notes
    searched = load_model(tmp_path / "run" / TAKEN_MODEL)
    assert ["square", "scale", "root"] == list(searched.table.names)
    mixed = onnx.load(tmp_path / "run" / MIXED_MODEL)
    onnx.checker.check_model(mixed, full_check=True)
    again = find(path, inputs=[sampling()], resume=True, **options)
    assert result.kept == again.kept


def test_a_model_of_which_both_branches_are_taken_is_refused_with_what_to_do(
    tmp_path: Path,
) -> None:
    """The message names the If and how many layers it holds."""
    path = save(parse(SAMPLING), tmp_path)
    with pytest.raises(ModelError, match=r"outside other nodes: If 'If_0' holds 5") as caught:
        find(path, inputs=[sampling(), sampling(8000)], out=tmp_path / "run")
    assert "samples that take one branch of each If" in caught.value.hint


def test_a_branch_without_layers_is_no_model_to_search(tmp_path: Path) -> None:
    """Samples that take a branch which only moves values are named as the reason."""
    text = SAMPLING.replace("[square] s = Add(x, x) b = Exp(s)", "b = Identity(x)")
    path = save(parse(text), tmp_path)
    with pytest.raises(ModelError, match=r"the samples take branches of .*model.onnx that hold"):
        find(path, inputs=[sampling(8000)], out=tmp_path / "run")


def test_layers_inside_stay_high_where_there_are_others(tmp_path: Path) -> None:
    """Without the flag an If stays as it is, and the run says what it holds; with it, not."""
    text = SAMPLING.replace("c = Equal", "[first] f = Abs(x) c = Equal")
    path = save(parse(text.replace("s = Mul(x, x)", "s = Mul(f, f)")), tmp_path)
    options: dict[str, Any] = {"inputs": [sampling()], "threads": 1, "certify": "none"}
    said: list[Event] = []
    kept_inside = find(path, out=tmp_path / "a", observer=said.append, **options)
    assert 1 == kept_inside.candidates
    (told,) = [e.message for e in said if isinstance(e, Warned) and "take_branches" in e.message]
    assert "If 'If_0' holds 5" in told
    assert "5 FP32 layers inside" in as_text(load_model(path).table)
    out = find(path, out=tmp_path / "b", take_branches=True, **options)
    assert (4, ["square", "scale"]) == (out.candidates, out.kept)


def test_layers_inside_a_loop_are_named(tmp_path: Path) -> None:
    """A model that is a Loop says which, and that its body can be searched by itself."""
    body = """(float[4] x, int64 n, bool go) => (float[4] y) {
        [steps] y = Loop (n, go, x) <
            body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t) {
            d = Identity(c) t = Tanh(s) }> }"""
    path = save(parse(body), tmp_path)
    feed = {"x": np.ones(4, np.float32), "n": np.array(3), "go": np.array(True)}
    with pytest.raises(ModelError, match="Loop 'steps' holds 1") as caught:
        find(path, inputs=[feed], out=tmp_path / "run")
    assert "searched as a model of its own" in caught.value.hint


def test_types_and_weights_of_a_branch_stay(tmp_path: Path) -> None:
    """What the file computes in FP16 is known once a branch is in place, weights stay weights."""
    text = """(float16[64] x, bool c) => (float[64] y) { [square] s = Mul(x, x)
        [choice] y = If (c) <
            then_branch = yes () => (float[64] a) {
                h = Identity(s) [low] l = Mul(h, h) f = Cast<to = 1>(l)
                [high] a = MatMul(f, w) },
            else_branch = no () => (float[64] b) { b = Cast<to = 1>(s) }> }"""
    weight = np.eye(64, dtype=np.float32)
    model = load_model(save(with_weights(parse(text), {"w": weight}), tmp_path))
    sample: Sample = {"x": np.linspace(0, 1, 64, dtype=np.float32), "c": np.array(True)}
    found, _ = take_branches(model, [sample], tmp_path)
    assert ["square", "low", "high"] == list(found.table.names)
    low = {node: stored.tensor for node, stored in found.in_low.items()}
    assert {"square": "s", "node_of_h": "h", "low": "l"} == low
    assert ["x"] == [*found.interface.inputs]
    assert onnx.load(found.path).graph.input[0].type == onnx.load(model.path).graph.input[0].type
    np.testing.assert_array_equal(found.weights["w"], weight)


@pytest.mark.parametrize("way", [True, False])
def test_what_overflows_in_a_branch_is_found_once_it_is_in_place(
    tmp_path: Path, way: bool
) -> None:
    """Layers of the branch that the file computes in FP16 count; those of the other one do not."""
    text = """(float[1] x, bool c) => (float16[1] y, float16[1] z) {
        [choice] y, z = If (c) <
            then_branch = yes () => (float16[1] a, float16[1] g) {
                [down] h = Cast<to = 10>(x) [square] a = Mul(h, h) [half] g = Sqrt(a) },
            else_branch = no () => (float16[1] b, float16[1] h) {
                [down] h = Cast<to = 10>(x) [halve] s = Sqrt(h) [square] b = Mul(h, s) }> }"""
    path = save(parse(text), tmp_path)
    feed = {"x": np.array([3000], np.float32), "c": np.array(way)}
    result = find(path, inputs=[feed], out=tmp_path / "run", threads=1, take_branches=True)
    form = result.fp32_form
    assert form is not None
    square = "square" if way else "square_0"
    layers = ["square", "half"] if way else ["halve", "square_0"]
    assert (layers, [square]) == (form.layers, [each.node for each in form.overflowing])


def test_a_refused_run_changes_nothing_of_the_one_that_is_there(tmp_path: Path) -> None:
    """Its model is that of other branches; what the finished run was judged by stays."""
    path = save(parse(SAMPLING), tmp_path)
    asked: dict[str, Any] = {"threads": 1, "copies": 0, "out": tmp_path / "run"}
    find(path, inputs=[sampling()], **asked)
    kept = {each.name: each.read_bytes() for each in (tmp_path / "run").glob("*.onnx*")}
    for resume in (False, True):
        with pytest.raises(RunFolderError, match="of another run"):
            find(path, inputs=[sampling(8000)], resume=resume, **asked)
    assert kept == {each.name: each.read_bytes() for each in (tmp_path / "run").glob("*.onnx*")}
