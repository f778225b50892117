"""Models that travel to a GPU are the tools' own, and the table tells what is over the limit."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from gpu_packing import archived, pack_network, unpacked
from peers.deployed import COLUMNS, deployed

from models import parse, with_weights

BATCH = 3
TEXT = "(float[1,16] x) => (float[1,16] y) { h = MatMul(x, w) y = Tanh(h) }"
IN_FP16 = """(float[1,16] x) => (float[1,16] y) {
  a = Cast<to = 10>(x) h = MatMul(a, w) b = Tanh(h) y = Cast<to = 1>(b) }"""


def test_models_and_their_batches_arrive_whole(tmp_path: Path) -> None:
    """Weights lie in one file, in FP16 as they are rounded; every output is what it was."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((16, 16)).astype(np.float32)}
    halves = {"w": weights["w"].astype(np.float16)}
    models: dict[str, tuple[Path, dict[str, Any]]] = {}
    for label, text, values in (("fp32", TEXT, weights), ("nothing", IN_FP16, halves)):
        path = tmp_path / f"{label}.onnx"
        onnx.save(with_weights(parse(text), values), path)
        models[label] = path, {}
    samples = [{"x": rng.standard_normal((1, 16)).astype(np.float32)} for _ in range(2)]
    folder = tmp_path / "packed"
    spec = {"network": "small", "limit": "tol", "bound": 0.1, "batch": BATCH}
    pack_network(tmp_path / "fp32.onnx", models, samples, spec, folder / "small")
    archived(folder, tmp_path / "packed.xz")
    (arrived,) = unpacked(tmp_path / "packed.xz", tmp_path / "arrived")
    many = np.concatenate([samples[number % 2]["x"] for number in range(BATCH)])
    for number, (path, _) in enumerate(models.values()):
        (own,) = _run(path, samples[0]["x"])
        np.testing.assert_array_equal(own, _run(arrived / f"{number}.onnx", samples[0]["x"])[0])
        assert (arrived / f"{number}.onnx").stat().st_size < weights["w"].nbytes
        (batch,) = _run(arrived / f"{number}.batch.onnx", many)
        np.testing.assert_allclose(own[0], batch[2], rtol=1e-2)


def _run(path: Path, x: Any) -> Any:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})


def test_a_column_has_the_fastest_that_holds() -> None:
    """Faster ones that are over the limit do not count; where none holds that is seen."""

    def row(label: str, ms: float, error: float) -> dict[str, Any]:
        shared = {"network": "n", "batch": 1, "bound": 0.1}
        return {**shared, "label": label, "error": error, "latency": {"median": ms}}

    rows = [
        row("fp32", 1.0, 0.0),
        row("random 0", 0.5, 0.2),
        row("random 1", 0.8, 0.1),
        row("nothing", 0.4, 5.0),
        {**row("AutoCast", 0.0, 0.0), "failed": "refused"},
    ]
    del rows[-1]["latency"]
    machine = {"gpus": ["A GPU"]}
    line = deployed({"machine": machine, "onnxruntime": "1.0", "rows": rows})[-2]
    cells = dict(zip(COLUMNS, line.strip("| ").split(" | ")[1:], strict=False))
    assert ("1", "(0.4)", "refused") == (cells["FP32"], cells["all low"], cells["AutoCast"])
    assert "0.8 of 2" == cells["random"]
