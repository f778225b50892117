"""`precision-bisect RUN --resume` goes on by what the folder tells, and trusts it with nothing."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import tiny
from precision_bisect.commandline.main import main
from precision_bisect.runs.ledger.ledger_reader import read_ledger
from precision_bisect.runs.runfolder import LEDGER, RESULT
from precision_bisect.runs.saved_options import options_from_json


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that has ended at its budget, beside its model."""
    folder = tmp_path_factory.mktemp("searched")
    np.savez(folder / "inputs.npz", x=tiny.samples()[0]["x"])
    model = tiny.write_model(folder / "m.onnx")
    flags = ["--inputs", str(folder / "inputs.npz"), "--tol", "2e-2", "--max-trials", "4"]
    assert 3 == main([str(model), *flags, "--workspace", "64", "--out", str(folder / "run")])
    return folder / "run"


@pytest.fixture
def run(searched: Path, tmp_path: Path) -> Path:
    """Return a copy of it in another place, beside its model."""
    shutil.copytree(searched.parent, tmp_path / "moved")
    return tmp_path / "moved" / "run"


def put(run: Path, key: str, value: object) -> None:
    """Write a row of the header of a run's ledger."""
    with closing(sqlite3.connect(run / LEDGER)) as connection, connection:
        connection.execute("UPDATE header SET value = ? WHERE key = ?", (json.dumps(value), key))


def asked_of(run: Path) -> dict[str, object]:
    """Return the options in the header."""
    return {**read_ledger(run / LEDGER).header.options}


def test_the_header_tells_the_run_whole(run: Path) -> None:
    """Every option as it was given, and each plug-in with what brings it."""
    header = read_ledger(run / LEDGER).header
    options = options_from_json(header.options)
    assert (2e-2, 4, 64) == (options.tol, options.max_trials, options.engine.workspace_mib)
    assert {"strategy guided", "metric elementwise", "backend emulated", "executor local"} == set(
        header.plugins
    )
    assert all(text.startswith("precision-bisect") for text in header.plugins.values())


def test_it_goes_on_with_the_flags_it_began_with(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """None is typed again; the trials that were made count, and what is spent limits no more."""
    assert 3 == main([str(run), "--resume", "--max-trials", "5", "--json"])
    assert 5 == json.loads(capsys.readouterr().out)["trials"]
    assert 0 == main([str(run), "--resume", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert ("found", tiny.KEPT) == (result["status"], result["kept"])
    assert 2e-2 == result["tolerance"]
    assert json.loads((run / RESULT).read_text()) == result
    assert 64 == result["options"]["engine"]["workspace_mib"]


def test_other_flags_are_another_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What verdicts depend on is compared as ever, and the folder stays the run's."""
    assert 2 == main([str(run), "--resume", "--tol", "3e-2"])
    assert "cannot resume" in capsys.readouterr().err
    assert 2 == main([str(run), "--resume", "--out", "other"])
    assert f"a run goes on in its folder, {run}; leave --out out" in capsys.readouterr().err


def test_a_model_that_is_gone_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is looked for where the run had it, in the folder, and beside it."""
    put(run, "options", {**asked_of(run), "model": "/gone/m.onnx"})
    (run.parent / "m.onnx").rename(run.parent / "n.onnx")
    assert 2 == main([str(run), "--resume"])
    (line,) = capsys.readouterr().err.splitlines()
    assert f"the model of {run} is not at /gone/m.onnx any more" in line
    assert f"MODEL --resume --out {run}" in line


CODE = [
    ("check", "/tmp/judge.py:f", "--check /tmp/judge.py:f"),
    ("inputs", "/tmp/load.py", "--inputs /tmp/load.py"),
    ("reference", "/tmp/outputs.PY", "--reference /tmp/outputs.PY"),
    ("executor", "dask", "--executor dask"),
    ("optuna_storage", "sqlite:////tmp/a.db", "--optuna-storage sqlite:////tmp/a.db"),
    ("plugins", ["/tmp/a.so"], "--plugins"),
    ("ort_custom_ops", ["/tmp/a.so"], "--ort-custom-ops"),
    ("config_script", "/tmp/a.py:f", "--trt-config-postprocess-script /tmp/a.py:f"),
    ("backend_options", {"host": "a", "ssh-config": "b"}, "--backend-option"),
]


@pytest.mark.parametrize(("name", "value", "said"), CODE)
def test_what_a_folder_names_is_not_run(
    run: Path, name: str, value: object, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of somebody else's chooses no code, no other machine, and no place to write to."""
    options = asked_of(run)
    engine = options["engine"]
    assert isinstance(engine, dict)
    if name in engine:
        options["engine"] = {**engine, name: value}
    else:
        options[name] = value
    put(run, "options", options)
    assert 2 == main([str(run), "--resume"])
    (line,) = capsys.readouterr().err.splitlines()
    assert f"the run had {said}" in line
    assert "give it again: what a run folder names is not run" in line


HOSTILE = [
    ("options", [], "is no ledger that this version can read: expected `object`"),
    ("options", {}, "is damaged: options: it names no model"),
    ("options", {"model": "m.onnx", "colour": 1}, "there is no option 'colour'"),
    ("options", {"model": "m.onnx", "engine": 3}, "expected `object`, got `int`"),
    ("options", {"model": "m.onnx", "check": "nothing"}, "names no function"),
    ("options", {"model": "m.onnx", "copies": -1}, "--copies -1 is below 0"),
    ("options", {"model": "\0"}, "is not at"),
    ("plugins", {"strategy mine": "mine 1.2"}, "used the strategy mine of mine 1.2, which is not"),
    ("plugins", {"a\x1b[31m": "b"}, "used the a\N{REPLACEMENT CHARACTER}[31m of b"),
    ("plugins", 3, "is no ledger that this version can read: expected `object`"),
    ("fingerprint", None, "is no ledger that this version can read: expected `object`"),
    ("schema", 3, "has schema 3, this version reads 4; use the version that began it"),
    ("schema", "4", "has schema '4', this version reads 4"),
]


@pytest.mark.parametrize(("key", "value", "said"), HOSTILE)
def test_a_header_that_no_run_has_written_is_one_line(
    run: Path, key: str, value: object, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is searched, and the ledger stays."""
    put(run, key, value)
    before = (run / LEDGER).read_bytes()
    assert 2 == main([str(run), "--resume"])
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert before == (run / LEDGER).read_bytes()


@pytest.mark.parametrize("command", ["verify", "target", "export"])
@pytest.mark.parametrize("options", [[], {"colour": 1}, {"engine": []}, {"low": "fp4"}, {}])
def test_a_result_with_options_of_no_run_is_one_line(
    run: Path, command: str, options: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """All commands that reopen a run read its options at one place."""
    result = json.loads((run / RESULT).read_text())
    (run / RESULT).write_text(json.dumps({**result, "options": options}))
    more = ["--write", str(run.parent / "out")] if command == "target" else []
    assert 2 == main([command, str(run), *more])
    (line,) = capsys.readouterr().err.splitlines()
    assert str(run / RESULT) in line
