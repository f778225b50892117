"""Models that travel to a GPU are the tools' own, and the table tells what is over the limit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from gpu_bench import stacks
from gpu_fronts import main
from gpu_fronts_runs import opening
from gpu_packing import archived, pack_network, unpacked
from peers.deployed import COLUMNS, deployed, holds

from models import parse, with_weights

BATCH = 3
TEXT = "(float[1,16] x) => (float[1,16] y) { h = MatMul(x, w) y = Tanh(h) }"
IN_FP16 = """(float[1,16] x) => (float[1,16] y) {
  a = Cast<to = 10>(x) h = MatMul(a, w) b = Softsign(h) y = Cast<to = 1>(b) }"""


def packed(folder: Path) -> Path:
    """Write an archive of two models of one network, and of what judges them."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((16, 16)).astype(np.float32)}
    halves = {"w": weights["w"].astype(np.float16)}
    models: dict[str, tuple[Path, dict[str, Any]]] = {}
    for label, text, values in (("fp32", TEXT, weights), ("nothing", IN_FP16, halves)):
        path = folder / f"{label}.onnx"
        onnx.save(with_weights(parse(text), values), path)
        models[label] = path, {}
    samples = [
        {"x": scale * rng.standard_normal((1, 16)).astype(np.float32)}
        for scale in (0.01, 0.01, 4.0)
    ]
    spec = {"network": "small", "limit": "tol", "bound": 0.1, "batch": BATCH, "judged": 2}
    pack_network(folder / "fp32.onnx", models, samples, spec, folder / "packed" / "small")
    archived(folder / "packed", folder / "packed.xz")
    return folder / "packed.xz"


def test_models_and_their_batches_arrive_whole(tmp_path: Path) -> None:
    """Weights lie in one file, in FP16 as they are rounded; every output is what it was."""
    (arrived,) = unpacked(packed(tmp_path), tmp_path / "arrived")
    samples = [dict(np.load(path)) for path in sorted((arrived / "samples").glob("*.npz"))]
    many = np.concatenate([sample["x"] for sample in samples])
    for number, name in enumerate(("fp32", "nothing")):
        (own,) = _run(tmp_path / f"{name}.onnx", samples[1]["x"])
        (there,) = _run(arrived / f"{number}.onnx", samples[1]["x"])
        np.testing.assert_array_equal(own, there)
        assert (arrived / f"{number}.onnx").stat().st_size < 4 * 16 * 16
        (batch,) = _run(arrived / f"{number}.batch.onnx", many)
        np.testing.assert_allclose(own[0], batch[1], rtol=1e-2)


def test_each_sample_is_judged_at_each_batch(tmp_path: Path) -> None:
    """A large sample, where the models differ, fails alone, beside others of a batch, too."""
    out = tmp_path / "figures.json"
    words = ["measure", str(packed(tmp_path)), "--out", str(out)]
    assert main([*words, "--provider", "CPUExecutionProvider"]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [(row["label"], row["batch"]) for row in rows] == [
        *(("fp32", 1), ("nothing", 1)),
        *(("fp32", BATCH), ("nothing", BATCH)),
    ]
    for row in rows:
        low = row["label"] == "nothing"
        assert (row["fresh"], row["fresh_over"]) == (1, int(low))
        assert row["error"] < row["bound"]
        assert holds(row) is not low


def test_samples_fill_the_last_batch_from_the_first_on() -> None:
    """None is left out where their number is no multiple; what has no axis stays one."""
    samples = [{"x": np.array([[place]]), "rate": np.array(8)} for place in range(5)]
    stacked = stacks(samples, 3)
    assert [list(stack["x"].ravel()) for stack in stacked] == [[0, 1, 2], [3, 4, 0]]
    assert [stack["rate"].shape for stack in stacked] == [(), ()]


@pytest.mark.parametrize(
    ("kept", "on", "tf32"),
    [
        (["norm"], False, "1"),  # Nothing that stays FP32 is rounded to TF32.
        (["norm", "product"], True, "1"),
        (["norm", "product"], False, "0"),
        (["product"], True, "0"),  # Another plan than that which the run judged with TF32.
    ],
)
def test_tf32_is_on_where_the_plan_leaves_with_it(kept: list[str], on: bool, tf32: str) -> None:
    """With it off where it need not be, ours was timed slower than it is deployed."""
    result = {
        "promises_of": "deploy",
        "kept": ["product"],
        "deploy": {"kept": ["product", "norm"]},
        "tf32_on": on,
        "deployment": {"provider_options": {"use_tf32": "0", "other": "1"}, "samples": 2},
    }
    assert opening(result, kept, {"product"}) == {
        "provider_options": {"use_tf32": tf32, "other": "1"}
    }


def _run(path: Path, x: Any) -> Any:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})


def row(label: str, ms: float, error: float, over: int = 0) -> dict[str, Any]:
    """Return a row that was measured, of four fresh samples, FP32 with the library's options."""
    shared = {"network": "n", "batch": 1, "bound": 0.1, "fresh": 4, "fresh_over": over}
    options = {} if label == "fp32" else {"use_tf32": "1"}
    figures = {"error": error, "latency": {"median": ms}, "options": options}
    return {**shared, "label": label, **figures}


def tables(rows: list[dict[str, Any]]) -> str:
    """Return the tables of rows."""
    machine = {"gpus": ["A GPU"]}
    return "\n".join(deployed({"machine": machine, "onnxruntime": "1.0", "rows": rows}))


def test_a_column_has_the_fastest_that_holds() -> None:
    """Faster ones that are over the limit do not count; where none holds that is seen."""
    rows = [
        row("fp32", 1.0, 0.0),
        row("random 0", 0.5, 0.2),
        row("random 1", 0.6, 0.1, over=1),
        row("random 2", 0.8, 0.1),
        row("nothing", 0.4, 5.0),
        {**row("AutoCast", 0.0, 0.0), "failed": "refused"},
    ]
    del rows[-1]["latency"]
    line = next(line for line in tables(rows).splitlines() if line.startswith("| n, 1"))
    cells = dict(zip(COLUMNS, line.strip("| ").split(" | ")[1:], strict=False))
    assert ("1", "(0.4)", "refused") == (cells["FP32"], cells["all low"], cells["AutoCast"])
    assert "0.8 of 3" == cells["random"]


@pytest.mark.parametrize(
    ("ms", "over", "told"),
    [
        (
            1.01,
            0,
            "in 1 of 1 rows, slower than FP32 that holds in 0; no fresh sample is over in 1",
        ),
        (1.5, 0, "in 0 of 1 rows, slower than FP32 that holds in 1; no fresh sample is over in 1"),
        (0.9, 1, "in 0 of 1 rows, slower than FP32 that holds in 0; no fresh sample is over in 0"),
    ],
)
def test_the_answer_is_beside_the_fastest_that_holds(ms: float, over: int, told: str) -> None:
    """Where it is slower than FP32, or a fresh sample is over, the page says so of itself."""
    answer = row("precision-bisect: answer", ms, 0.05, over)
    assert told in tables([row("fp32", 1.0, 0.0), answer, row("AutoCast", 0.5, 0.2)])


def test_what_ran_on_the_gpu_answers_there() -> None:
    """It has measured what the other has estimated; where that is FP32 the page says so."""
    fp32 = row("fp32", 1.0, 0.0)
    again = {**fp32, "latency": {"median": 1.002}}
    there = {**again, "label": "precision-bisect, run there: answer"}
    text = tables([fp32, row("precision-bisect: answer", 2.0, 0.05), there])
    assert "| n, 1 | FP32, run there | 1 | 1 (fp32) | 0% |" in text


def test_the_gain_is_over_the_fewest_layers_as_they_were_opened() -> None:
    """Turns of one session count before figures of another; with TF32 on it is another answer."""
    now, fewest = row("precision-bisect: answer", 0.8, 0.05), row("precision-bisect: fewest", 1, 0)
    off = {**fewest, "label": f"{fewest['label']}, without TF32", "latency": {"median": 1.6}}
    timed = [now, fewest, off]
    assert "| n, 1 | 1.6 | 0.8 | 50% |" in tables(timed)
    assert "3263d67e" not in tables(timed[:2])
    timed[1]["options"] = {"use_tf32": "0"}
    assert "| n, 1 | 1 | 0.8 | 20% |" in tables(timed[:2])
