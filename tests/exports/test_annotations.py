"""model.mixed.onnx tells model viewers which layers stay high, and why."""

import json
from dataclasses import replace
from pathlib import Path

import onnx
import onnxruntime
import pytest

import tiny
from exports_models import Parse, chain, export_of
from precision_bisect.commandline.export_command import export
from precision_bisect.exports.write import write_exports
from precision_bisect.runs.results.causes import Cause
from precision_bisect.runs.results.result import Diagnosis
from precision_bisect.runs.results.saved import read_saved
from precision_bisect.runs.runfolder import MIXED_MODEL, RunFolder

EVIDENCE = 'reaches 1e5; <script>"\n\u2265'


def written(folder: Path, ir_version: int) -> onnx.ModelProto:
    """Return the typed model of a plan that keeps one layer and pins another, from the file."""
    model = chain(["a", "b", "c", "d"])
    model.ir_version = ir_version
    model.graph.node[0].doc_string = "of the exporter"
    onnx.save(model, folder / "model.onnx")
    asked = export_of(folder / "model.onnx", ["a"])
    pinned = asked.model.table.pinned({asked.model.table.names[2]: "no kernel"})
    diagnosis = [Diagnosis(layer="a", cause=Cause.OVERFLOW, evidence=EVIDENCE)]
    asked = replace(asked, model=replace(asked.model, table=pinned), diagnosis=diagnosis)
    assert write_exports(RunFolder(folder), asked)[MIXED_MODEL] is None
    return onnx.load(folder / MIXED_MODEL)


def metadata(model: onnx.ModelProto) -> dict[str, dict[str, str]]:
    """Return the metadata of each node that has some."""
    return {
        node.name: {entry.key: entry.value for entry in node.metadata_props}
        for node in model.graph.node
        if node.metadata_props
    }


def test_kept_layers_carry_their_diagnosis(tmp_path: Path) -> None:
    """The values come back as they were, and layers that run low have none."""
    expected = {
        "a": {
            "precision_bisect.precision": "fp32",
            "precision_bisect.cause": "overflow",
            "precision_bisect.evidence": EVIDENCE,
        },
        "c": {"precision_bisect.precision": "fp32", "precision_bisect.evidence": "no kernel"},
    }
    assert expected == metadata(written(tmp_path, 10))


def test_a_run_and_export_write_the_same(searched: Path, tmp_path: Path) -> None:
    """The run's fingerprint, and the causes that it found: `export` takes both from the result."""
    result = read_saved(searched / "run").result
    export(searched / "tiny.onnx", searched / "run", tmp_path, {})
    first = (searched / "run" / MIXED_MODEL).read_bytes()
    said = layers_of(onnx.load_from_string(first))
    for found in result.diagnosis:
        assert found.evidence == said[found.layer]["precision_bisect.evidence"]
    assert tiny.KEPT == [found.layer for found in result.diagnosis]
    assert first == (tmp_path / MIXED_MODEL).read_bytes()
    for folder in (searched / "run", tmp_path):
        told = onnx.load(folder / MIXED_MODEL).metadata_props
        (run,) = [json.loads(each.value) for each in told if each.key == "precision_bisect.run"]
        assert json.loads(json.dumps(result.fingerprint)) == run
        assert {"precision-bisect", "onnxruntime"} <= run["versions"].keys()


def test_older_files_tell_it_in_the_model(tmp_path: Path) -> None:
    """Their nodes have no metadata; the version and what the exporter wrote stay as they are."""
    model = written(tmp_path, 9)
    assert (9, {}) == (model.ir_version, metadata(model))
    assert ["of the exporter", "", "", ""] == [node.doc_string for node in model.graph.node][:4]
    assert metadata(written(tmp_path, 10)) == layers_of(model)


def layers_of(model: onnx.ModelProto) -> dict[str, dict[str, str]]:
    """Return what the model itself says of each layer."""
    told = {entry.key: entry.value for entry in model.metadata_props}
    layers: dict[str, dict[str, str]] = json.loads(told["precision_bisect.layers"])
    return layers


@pytest.mark.parametrize("ir_version", [9, 10])
def test_runtimes_read_it(ir_version: int, tmp_path: Path, parse_rtx: Parse) -> None:
    """ONNX's checker, ONNX Runtime and TensorRT-RTX take the annotated model as any other."""
    model = written(tmp_path, ir_version)
    onnx.checker.check_model(model, full_check=True)
    onnxruntime.InferenceSession(tmp_path / MIXED_MODEL, providers=["CPUExecutionProvider"])
    assert 4 <= parse_rtx(model).num_layers
