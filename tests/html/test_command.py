"""`precision-bisect report`, and the report that every run leaves."""

import json
from pathlib import Path

import numpy as np
import pytest

import ladder_model
import tiny
from precision_bisect.commandline.main import main
from precision_bisect.runs.runfolder import LEDGER, REPORT, STATUS
from precision_bisect_reports.html.source import read_source
from precision_bisect_reports.html.view import view_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of 20 layers that needs four of them."""
    return tiny.write_model(tmp_path_factory.mktemp("model") / "tiny.onnx")


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of the model."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert 0 == main([str(model), "--out", str(folder), "--backend", "emulated"])
    return folder


def test_a_run_leaves_its_report(finished: Path) -> None:
    """The page is there, tells the answer, and has every node of the model."""
    seen = view_of(read_source(finished), finished)
    title = "4 of 20 layers stay FP32, 16 run in FP16 (77% of the bytes)"
    assert title == seen["answer"]["title"]
    assert tiny.KEPT == [row["layer"] for row in seen["kept"]]
    assert 20 == len(seen["layers"]["name"]) == len(seen["sensitivity"]["layer"])
    assert seen["answer"]["title"] in (finished / REPORT).read_text()


def test_the_command_writes_the_same_page(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Made again it is the same, byte for byte, under the name that is asked for and printed."""
    page = tmp_path / "page.html"
    assert 0 == main(["report", str(finished), "--out", str(page), "--json"])
    assert {"report": str(page)} == json.loads(capsys.readouterr().out)
    assert (finished / REPORT).read_bytes() == page.read_bytes()
    assert 0 == main(["report", str(finished)])
    assert f"{finished / REPORT}\n" == capsys.readouterr().out


def test_a_folder_without_a_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, what is wrong and what to do, and no file."""
    assert 2 == main(["report", str(tmp_path / "nothing")])
    assert "it has no ledger.sqlite; name the folder" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()


def test_a_report_that_cannot_be_written_does_not_end_a_run(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run's own exit code stands, and a warning says what went wrong."""
    (tmp_path / REPORT).mkdir()
    assert 0 == main([str(model), "--out", str(tmp_path), "--backend", "emulated"])
    assert "warning: cannot write" in capsys.readouterr().err
    assert (tmp_path / LEDGER).exists()


def test_a_ladder_leaves_its_report(tmp_path: Path) -> None:
    """All searches are in it, and every layer has the type of its rung."""
    model = ladder_model.write(tmp_path)
    np.savez(tmp_path / "inputs.npz", x=ladder_model.samples(1)[0]["x"])
    folder, inputs = tmp_path / "run", ["--inputs", str(tmp_path / "inputs.npz")]
    limits = ["--tol", "3e-2", "--metric", "l2", "--ladder", "int8,fp16,fp32"]
    assert 0 == main([str(model), "--out", str(folder), "--backend", "emulated", *inputs, *limits])
    seen = view_of(read_source(folder), folder)
    assert len(list(folder.glob(f"*/{LEDGER}"))) == len(seen["searches"]) >= 2
    types = dict(zip(seen["layers"]["name"], seen["layers"]["precision"], strict=True))
    assert {"fp32"} == {types[name] for name in ladder_model.OVERFLOWING}
    assert ["fp32", "fp16", "int8"] == [name for name, _ in seen["answer"]["precisions"]]
    assert (folder / REPORT).exists()


def test_a_killed_run_has_a_report(finished: Path, tmp_path: Path) -> None:
    """With nothing but a ledger and the status of a run that searches, the best so far is told."""
    for name in (LEDGER, STATUS):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    told = json.loads((tmp_path / STATUS).read_text())
    (tmp_path / STATUS).write_text(json.dumps({**told, "state": "searching"}))
    assert 0 == main(["report", str(tmp_path)])
    assert "Best so far: 4 of 20 layers" in (tmp_path / REPORT).read_text()
