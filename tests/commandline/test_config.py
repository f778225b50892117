"""Flags of the runs in a folder stand in a file; the command line goes before it."""

import argparse
import json
from pathlib import Path

import pytest

import models
from precision_bisect.commandline.arguments.run_flags import run_parser
from precision_bisect.commandline.main import main
from precision_bisect.errors import ExitCode

BODY = "(float[1,8] x) => (float[1,8] y) { y = Relu(x) }"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to a folder with a model."""
    monkeypatch.chdir(tmp_path)
    models.save(models.parse(BODY), tmp_path)


def searched(*arguments: str) -> float:
    """Search the model, and return the tolerance that it was searched with."""
    assert ExitCode.OK == main(["model.onnx", "--overwrite", *arguments])
    result = json.loads(Path("model.onnx.precision-bisect/result.json").read_text())
    return float(result["tolerance"])


@pytest.mark.parametrize(
    ("name", "head"),
    [("precision-bisect.toml", ""), ("pyproject.toml", "[tool.precision-bisect]\n")],
)
def test_the_file_is_obeyed_and_told(
    name: str, head: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flag of the command line takes the place of the file's, also of one that repeats."""
    Path(name).write_text(f'{head}tol = 0.5\nbackend = "emulated"\ncopies = 3\n')
    assert 0.5 == searched()
    assert "--tol=0.5 --backend=emulated --copies=3\n" in capsys.readouterr().err
    assert 0.25 == searched("--tol", "0.25")
    assert "file: --backend=emulated --copies=3\n" in capsys.readouterr().err
    assert 0.01 == searched("--config", "none")
    Path("other.toml").write_text("tol = 0.125")
    assert 0.125 == searched("--config", "other.toml")
    assert ExitCode.OK == main(["curve", "model.onnx", "--overwrite"])
    assert "--tol=0.5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tool = 1", "precision-bisect.toml: unknown key 'tool'; did you mean tol?"),
        ("tol = ", "is no configuration file, which is TOML"),
        ("json = 3", "json is 3; it takes true or false"),
        ("tol = [true]", "it takes a text or a number"),
        ("help-all = true", "give it on the command line"),
        ('keep = "a\\u0000"', "has a null character"),
        ('low = "fp12"', "invalid choice: 'fp12'"),
    ],
)
def test_what_is_wrong_in_it_is_one_line(
    text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys are those of a batch's jobs, and refused as theirs."""
    Path("precision-bisect.toml").write_text(text)
    assert ExitCode.USAGE == main(["model.onnx"])
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "text",
    [
        'check = "judge.py:error"',
        'inputs = "loader.py"',
        'on-finish = "touch ran"',
        'cluster = "tcp://there:8786"',
        'plugins = ["library.so"]',
        'ort-custom-ops = ["library.so"]',
        'trt-config-postprocess-script = "builder.py"',
        'backend-option = ["host=there"]',
        'junit = "notes.txt"',
        'out = "elsewhere"',
        "overwrite = true",
    ],
)
def test_code_and_machines_come_from_a_file_that_was_named(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that merely lies in the folder may be somebody else's."""
    path = Path("precision-bisect.toml")
    path.write_text(text)
    assert ExitCode.USAGE == main(["model.onnx"])
    said = capsys.readouterr().err.splitlines()
    assert 1 == len(said) and "--config precision-bisect.toml to trust it" in said[0]


def test_a_file_that_was_named_is_trusted(capsys: pytest.CaptureFixture[str]) -> None:
    """What it names is run, and told before."""
    path = Path("precision-bisect.toml")
    path.write_text('on-finish = "touch ran"')
    main(["model.onnx"])
    assert not Path("ran").exists()
    main(["model.onnx", "--config", str(path)])
    assert Path("ran").exists()
    assert "'--on-finish=touch ran'" in capsys.readouterr().err


def test_a_foreign_project_file_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """One without the table, or that is no TOML, is somebody else's."""
    for text in ("[tool.other]\n", "tool = 3", "no toml ["):
        Path("pyproject.toml").write_text(text)
        assert 0.01 == searched()
    assert "configuration" not in capsys.readouterr().err


def test_jobs_of_a_batch_have_their_own_flags() -> None:
    """What a batch has checked is what runs, whatever lies beside its file."""
    Path("precision-bisect.toml").write_text("tol = 0.5")
    Path("jobs.toml").write_text('[[job]]\nmodel = "model.onnx"\n')
    assert ExitCode.OK == main(["batch", "jobs.toml"])
    result = json.loads(Path("jobs.precision-bisect/model/result.json").read_text())
    assert 0.01 == result["tolerance"]


def test_a_quiet_run_says_what_matters(capsys: pytest.CaptureFixture[str]) -> None:
    """Warnings and the answer stand without the opening and the progress."""
    searched("-q")
    shown = capsys.readouterr()
    assert all(line.startswith("Warning: ") for line in shown.err.splitlines())
    assert "no --inputs given" in shown.err and shown.out


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('metric = "cosine"', ["--check", "judge.py:error"]),
        ('low = "bf16"', ["--ladder", "fp16,fp32"]),
        ('ladder = "fp16,fp32"', ["--low", "fp16"]),
        ("resume = true", ["--overwrite"]),
        ("input-shapes = ['x:[1,8]']", ["--inputs", "loader.py"]),
    ],
)
def test_what_excludes_a_key_takes_its_place(text: str, arguments: list[str]) -> None:
    """A project's file is no reason to refuse what one command says otherwise."""
    judge = "return abs(outputs[0]['y'] - reference[0]['y']).max() < 0.01"
    Path("judge.py").write_text(f"def error(outputs, reference):\n    {judge}\n")
    loader = "import numpy\n\ndef load_data():\n    yield {'x': numpy.ones((1, 8), 'float32')}\n"
    Path("loader.py").write_text(loader)
    searched()
    Path("precision-bisect.toml").write_text(text)
    assert ExitCode.OK == main(["model.onnx", "--out", "other", *arguments])


def test_a_flag_that_the_file_sets_can_be_taken_back(capsys: pytest.CaptureFixture[str]) -> None:
    """Each that is off by default has its opposite, which --help leaves out."""
    Path("precision-bisect.toml").write_text("json = true\nquiet = true\n")
    searched()
    assert capsys.readouterr().out.startswith("{")
    searched("--no-json", "--no-quiet")
    shown = capsys.readouterr()
    assert not shown.out.startswith("{") and "evaluations" in shown.err
    with pytest.raises(SystemExit):
        main(["--help-all"])
    assert "--no-json" not in capsys.readouterr().out
    flags = run_parser()._option_string_actions
    on = {flag for flag, action in flags.items() if type(action) is argparse._StoreTrueAction}
    long = {flag.removeprefix("--") for flag in on if flag.startswith("--")}
    assert {"json", "overwrite"} <= long
    assert all(f"--no-{name}" in flags for name in long)
