"""The list of all layers that a run writes for reports."""

import json
from pathlib import Path
from typing import Any

import models
from precision_bisect.graphs.layers_file import write_layers
from precision_bisect.graphs.load import load_model
from precision_bisect.runs.runfolder import LAYERS, RunFolder

EXAMPLE = Path(__file__).parents[2] / "examples" / "nafnet" / "nafnet.onnx"


def written(path: Path, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the file for a model."""
    write_layers(load_model(path), RunFolder(folder))
    told = json.loads((folder / LAYERS).read_text())
    assert (1, path.name) == (told["schema"], told["model"])
    return list(told["layers"])


def test_followers_name_the_layer_whose_values_they_move(tmp_path: Path) -> None:
    """Through other followers, past shapes and indices; the model's own inputs have no layer."""
    body = (
        "(float[2,3] x) => (float[3,2] y, float[3,2] z) <int64[2] s = {3, 2}> "
        "{ t = Transpose(x) a = Relu(t) r = Reshape(a, s) u = Identity(r) y = Abs(u) "
        "z = Identity(u) }"
    )
    rows = written(models.save(models.parse(body), tmp_path), tmp_path / "run")
    by_op = [(row["op"], row["candidate"], row["follows"], row["inputs"]) for row in rows]
    assert [
        ("Transpose", None, None, []),
        ("Relu", 0, None, [0]),
        ("Reshape", None, 1, [1]),
        ("Identity", None, 1, [2]),
        ("Abs", 1, None, [3]),
        ("Identity", None, 1, [3]),
    ] == by_op
    assert rows[2]["exclusion"].startswith("moves values only")


def test_the_example_is_listed_in_full(tmp_path: Path) -> None:
    """Every node is there in network order: 300 candidates, each fed by earlier nodes only."""
    rows = written(EXAMPLE, tmp_path)
    assert 375 == len(rows)
    assert list(range(300)) == [r["candidate"] for r in rows if r["candidate"] is not None]
    assert all(feeder < place for place, row in enumerate(rows) for feeder in row["inputs"])
    assert "encoders.0.0.norm1" == rows[6]["module"]
