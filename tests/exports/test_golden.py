"""Golden inputs and outputs, and the command by which Polygraphy judges with them."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from effort import nightly
from models import load_text, normal, parse, with_weights
from precision_bisect.exports import judging
from precision_bisect.exports.export import NotWritable
from precision_bisect.exports.fitting_files import Unfit, stored_samples
from precision_bisect.exports.judging import RUNNER, Golden, golden_of
from precision_bisect.exports.polygraphy_command import polygraphy_command
from precision_bisect.graphs.ort import Session
from precision_bisect.runs.results.deployment import Deployment
from precision_bisect.runs.runfolder import GOLDEN_INPUTS, GOLDEN_OUTPUTS, MIXED_MODEL
from precision_bisect.settings.engine_settings import EngineSettings


def graph(text: str) -> onnx.GraphProto:
    """Return the graph of this text."""
    return onnx.parser.parse_graph(f"g {text}")


def test_polygraphy_reads_them(tmp_path: Path) -> None:
    """Polygraphy's own readers give back the arrays, in the types of the graph."""
    from polygraphy.comparator import RunResults
    from polygraphy.json import load_json

    samples = [{"x": normal(2, 4, seed=i), "k": np.array(i)} for i in range(3)]
    outputs = [{"a": each["x"] * 2, "b": each["x"] > 0} for each in samples]
    text = "(float16[2,4] x, int64 k) => (float16[2,4] a, bool[2,4] b) { a = Neg(x) b = Not(k) }"
    made = golden_of(graph(text), samples, outputs)
    (tmp_path / "inputs.json").write_text(made.inputs_text())
    (tmp_path / "outputs.json").write_text(made.outputs_text())
    loaded = load_json(str(tmp_path / "inputs.json"))
    results = RunResults.load(str(tmp_path / "outputs.json"))
    assert [RUNNER] == list(results.keys())
    for number, feed in enumerate(samples):
        np.testing.assert_array_equal(feed["x"].astype(np.float16), loaded[number]["x"])
        assert (np.float16, ()) == (loaded[number]["x"].dtype, loaded[number]["k"].shape)
        found = results[RUNNER][number]
        np.testing.assert_array_equal(outputs[number]["a"].astype(np.float16), found["a"])
        np.testing.assert_array_equal(outputs[number]["b"], found["b"])


@pytest.mark.parametrize(
    ("inputs", "outputs", "why"),
    [
        ([], [{"a": normal(2)}], "0 stored inputs and 1 stored outputs"),
        ([], [], "0 stored inputs and 0 stored outputs"),
        ([{"x": 1.5}], [{"a": normal(2)}], "holds what is no array"),
        (["x"], [{"a": normal(2)}], "Polygraphy cannot read"),
    ],
)
def test_stored_samples_that_are_none_are_told(
    inputs: list[Any], outputs: list[Any], why: str, tmp_path: Path
) -> None:
    """Each sample has its inputs and its outputs, all arrays, whoever has written the files."""
    from polygraphy.json import to_json

    (tmp_path / GOLDEN_INPUTS).write_text(to_json(inputs))
    (tmp_path / GOLDEN_OUTPUTS).write_text(Golden(inputs=[], outputs=outputs).outputs_text())
    with pytest.raises(Unfit, match=why):
        stored_samples(tmp_path)


def test_nobody_is_waited_for_who_writes_samples(tmp_path: Path) -> None:
    """A pipe in their place is no file of samples."""
    os.mkfifo(tmp_path / GOLDEN_INPUTS)
    with pytest.raises(Unfit, match="no plain file"):
        stored_samples(tmp_path)


def test_what_is_left_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first samples are taken, as many as have room, and the rest is counted."""
    samples = [{"x": np.full((2, 4), i, np.float32)} for i in range(20)]
    outputs = [{"a": each["x"]} for each in samples]
    plain = graph("(float[2,4] x) => (float[2,4] a) { a = Neg(x) }")
    made = golden_of(plain, samples, outputs)
    assert [float(i) for i in range(16)] == [each["x"][0, 0] for each in made.inputs]
    deployment = Deployment(
        provider_options={},
        session_config={},
        samples=16,
        samples_total=20,
    )
    assert "the first 16 of 20 samples are stored for the target" == deployment.left_out
    monkeypatch.setattr(judging, "MOST_GOLDEN_BYTES", 5 * 64)
    assert 5 == len(golden_of(plain, samples, outputs).outputs)
    monkeypatch.setattr(judging, "MOST_GOLDEN_BYTES", 63)
    with pytest.raises(NotWritable, match="one sample has more than"):
        golden_of(plain, samples, outputs)


@pytest.mark.parametrize(
    ("kind", "why"),
    [("string", "'x' is text"), ("bfloat16", "'x' is bfloat16, which Polygraphy cannot store")],
)
def test_what_polygraphy_cannot_store_is_refused(kind: str, why: str) -> None:
    """Text and types that numpy does not have are a reason, not a broken file."""
    text = f"({kind}[1] x) => (float[1] a) {{ a = Neg(x) }}"
    with pytest.raises(NotWritable, match=why):
        golden_of(graph(text), [{"x": np.zeros(1)}], [{"a": np.zeros(1)}])


def polygraphy(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Polygraphy in a folder."""
    word, *words = shlex.split(command)
    assert "polygraphy" == word
    main = "from polygraphy.tools import main; import sys; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", main, *words], cwd=folder, capture_output=True, text=True
    )


LIMITS: tuple[Mapping[str, Any], ...] = (
    {"metric": "elementwise", "atol": {"a": 1e-2, "b": 1e-2}, "rtol": {"a": 1e-2, "b": 1e-2}},
    *(
        {"metric": metric, "atol": {"a": 1e-2, "b": 1e-3}, "rtol": dict.fromkeys("ab", 0.0)}
        | ({"quantile": 0.99} if metric == "quantile" else {})
        for metric in ("max", "quantile")
    ),
    {"metric": "l2", "atol": {"a": 0.1, "b": 0.2}},
    {"metric": "cosine", "atol": {"a": 1e-4, "b": 1e-4}},
    {"metric": "psnr", "atol": {"a": 40.0, "b": 30.0}},
)


OTHERS = nightly(*LIMITS[2:])


@pytest.mark.parametrize("limits", [LIMITS[0], *nightly(LIMITS[1]), *OTHERS])
def test_the_command_judges(limits: Mapping[str, Any], tmp_path: Path) -> None:
    """With ONNX Runtime in TensorRT's place it passes right outputs and fails wrong ones."""
    text = "(float[n,4] x) => (float[n,4] a, float[n,4] b) { a = Sigmoid(x) b = Tanh(a) }"
    model = load_text(text, tmp_path)
    onnx.save(onnx.load(model.path), tmp_path / MIXED_MODEL)
    samples = [{"x": normal(2 + i, 4, seed=i)} for i in range(2)]
    session = Session(model.proto, model.weights)
    outputs = [session.run(feed) for feed in samples]
    command = polygraphy_command(model, EngineSettings(), limits, samples)
    assert " --trt --strongly-typed " in command
    here = command.replace("--trt --strongly-typed", "--onnxrt")
    for off, code in ((0.0, 0), (0.5, 1)):
        wrong = [
            {"a": o["a"] + np.float32(off) * normal(*o["a"].shape), "b": o["b"]} for o in outputs
        ]
        made = golden_of(model.proto.graph, samples, wrong)
        (tmp_path / GOLDEN_INPUTS).write_text(made.inputs_text())
        (tmp_path / GOLDEN_OUTPUTS).write_text(made.outputs_text())
        done = polygraphy(tmp_path, here)
        assert (code == 0) == (done.returncode == 0), done.stdout + done.stderr


def test_tensorrt_gets_the_shapes_of_dynamic_inputs(tmp_path: Path) -> None:
    """The profile spans the samples, unless the run was given one; TF32 is as in the run."""
    text = "(float[n,4] x, float[2] k) => (float[n,4] a) { a = Neg(x) }"
    model = load_text(text, tmp_path)
    samples = [{"x": normal(n, 4), "k": normal(2)} for n in (3, 1, 2)]
    command = polygraphy_command(model, EngineSettings(), LIMITS[0], samples)
    shapes = (
        "--trt-min-shapes 'x:[1,4]' --trt-opt-shapes 'x:[3,4]' --trt-max-shapes 'x:[3,4]' --load"
    )
    assert shapes in command
    assert "--tf32" not in command
    given = EngineSettings(tf32="on", opt_shapes={"x": (8, 4)}, max_shapes={"x": (9, 4)})
    command = polygraphy_command(model, given, LIMITS[0], samples)
    assert "--trt-min-shapes 'x:[8,4]'" in command and "--trt-max-shapes 'x:[9,4]'" in command
    assert " --tf32 " in command


def test_polygraphys_parser_takes_the_command(tmp_path: Path) -> None:
    """As it stands, for TensorRT, with names that hold colons and blanks, it makes a script."""
    model = load_text("(float[n] x) => (float[n] a) { a = Neg(x) }", tmp_path)
    for limits in LIMITS[:2]:
        renamed = {
            key: {"out:0": each["a"], "an output": each["b"]} if isinstance(each, dict) else each
            for key, each in limits.items()
        }
        command = polygraphy_command(model, EngineSettings(), renamed, [{"x": normal(2)}])
        done = polygraphy(tmp_path, f"{command} --gen made.py")
        assert 0 == done.returncode, done.stdout + done.stderr
        made = (tmp_path / "made.py").read_text()
        assert "strongly_typed=True" in made and "min=[2]" in made
        assert "tf32" not in made
        (tmp_path / "made.py").unlink()


def test_classes_are_exact(tmp_path: Path) -> None:
    """Outputs that must be equal have no tolerance; a share of them has no command."""
    model = load_text("(float[1] x) => (float[1] a) { a = Neg(x) }", tmp_path)
    of_a: Mapping[str, Any] = {"metric": "elementwise", "atol": {"a": 0.1}, "rtol": {"a": 0.1}}
    exact = {**of_a, "classes": {"b": 0.0}}
    command = polygraphy_command(model, EngineSettings(), exact, [{"x": normal(1)}])
    assert command.endswith("--atol a:0.1 b:0 --rtol a:0.1 b:0")
    for other in ({**of_a, "classes": {"b": 0.02}}, {**exact, "metric": "l2"}):
        with pytest.raises(NotWritable, match="does not judge classes"):
            polygraphy_command(model, EngineSettings(), other, [{"x": normal(1)}])


def test_a_check_has_no_command(tmp_path: Path) -> None:
    """Polygraphy cannot judge by the user's own function."""
    model = load_text("(float[1] x) => (float[1] a) { a = Neg(x) }", tmp_path)
    settings = {"check": "a.py:f", "tolerance": 0.1}
    with pytest.raises(NotWritable, match=r"does not judge by a\.py:f"):
        polygraphy_command(model, EngineSettings(), settings, [{"x": normal(1)}])


MEASURE = """
import sys
from pathlib import Path
from precision_bisect.exports.recheck import main
from precision_bisect.exports.rerun import Feeds

def peak():
    # Not `ru_maxrss`, which begins with what the process had that started this one.
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024

Feeds(large=True).save(Path(sys.argv[1]))
before = peak()
main(sys.argv[1], sys.argv[1])
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux counts it")
def test_a_model_is_checked_with_one_graph_in_memory(tmp_path: Path) -> None:
    """A file and what is parsed of it, but never the parsed one of the check beside the other."""
    side = 4096
    text = f"(float[1,{side}] x) => (float[1,{side}] y) {{ y = MatMul(x, w) }}"
    proto = with_weights(parse(text), {"w": normal(side, side)})
    onnx.save(proto, tmp_path / MIXED_MODEL)
    made = golden_of(proto.graph, [{"x": normal(1, side)}], [{"y": normal(1, side)}])
    (tmp_path / GOLDEN_INPUTS).write_text(made.inputs_text())
    (tmp_path / GOLDEN_OUTPUTS).write_text(made.outputs_text())
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    told, peak = subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert '{"samples": 1, "unrun": ""}' == told
    # ONNX Runtime itself takes half as much again.
    assert int(peak) < 3 * (tmp_path / MIXED_MODEL).stat().st_size
