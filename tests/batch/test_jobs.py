"""Jobs files: keys are flags, and what cannot work is said before anything starts."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from precision_bisect.commandline.arguments.run_flags import run_parser, to_options
from precision_bisect.commandline.batch.batch_record import Job
from precision_bisect.commandline.batch.jobs import read_jobs
from precision_bisect.commandline.main import main
from precision_bisect.options import Options
from precision_bisect.settings.sample_options import ENGINE_REFERENCE

Write = Callable[[str], Path]
REPO = Path(__file__).parents[2]

GOOD = '[[job]]\nmodel = "a.onnx"\n'


def options_of(job: Job) -> Options:
    """Return what the main command makes of a job's command."""
    return to_options(run_parser().parse_args(job.command[2:]))


def test_keys_are_flags(write: Write, tmp_path: Path) -> None:
    """Values, lists, bare flags and underscores become the main command's arguments."""
    path = write(
        '[[job]]\nmodel = "a.onnx"\ntol = ["y=1e-2", "1e-1"]\nmax_time = "2h"\n'
        'holdout = 1\ntf32 = "on"\nguard-islands = false\nthreads = 2\n'
    )
    (job,) = read_jobs(path, tmp_path / "out")
    assert (
        *("precision-bisect", "run", "--backend=emulated", "--inputs=inputs.npz", "--threads=2"),
        *("--tol=y=1e-2", "--tol=1e-1", "--max-time=2h", "--holdout=1"),
        *("--tf32=on", "--no-guard-islands", "--config=none", f"--out={tmp_path / 'out' / 'a'}"),
        *("--resume", "--", "a.onnx"),
    ) == tuple(job.command)
    options = options_of(job)
    assert ({"y": 1e-2, "": 1e-1}, 7200.0, 2) == (options.tol, options.max_time_s, options.threads)
    assert ("a", str(tmp_path / "out" / "a")) == (job.name, job.run_folder)


def test_a_job_overrides_the_defaults(write: Write, tmp_path: Path) -> None:
    """false takes a bare flag back, an empty list any other."""
    path = write(
        'tf32 = "on"\nmax-trials = 9\n[[job]]\nmodel = "a.onnx"\ntf32 = "auto"\nmax_trials = []\n'
        '[[job]]\nmodel = "b.onnx"\n'
    )
    jobs = read_jobs(path, tmp_path / "out")
    first, second = map(options_of, jobs)
    assert ("auto", None) == (first.engine.tf32, first.max_trials)
    assert ("on", 9) == (second.engine.tf32, second.max_trials)


def test_the_engine_as_reference_is_no_file(write: Write, tmp_path: Path) -> None:
    """Nothing of that name need be there."""
    (job,) = read_jobs(write(GOOD + 'reference = "engine"\n'), tmp_path / "out")
    assert ENGINE_REFERENCE == options_of(job).reference


@pytest.mark.parametrize("model", ["?.onnx", ".", "[1] *?"])
def test_a_pattern_or_a_folder_stands_for_its_models(
    model: str, write: Write, tmp_path: Path
) -> None:
    """One job each, named after its model; `{name}` is that name, also in lists."""
    told = 'inputs = "{name}"\nkeep = ["{name}1", "{name}2"]\n'
    path = write(f'[[job]]\nmodel = "{model}"\n{told}')
    (tmp_path / "[1] *?").mkdir()
    for name in "ab":
        (tmp_path / name).mkdir()
        shutil.copy(tmp_path / f"{name}.onnx", tmp_path / "[1] *?")
    jobs = read_jobs(path, tmp_path / "out")
    assert ["a", "b"] == [job.name for job in jobs]
    assert [Path("a"), Path("b")] == [options_of(job).inputs for job in jobs]
    assert [("a1", "a2"), ("b1", "b2")] == [options_of(job).keep for job in jobs]
    assert [tmp_path / f"out/{job.name}" for job in jobs] == [Path(j.run_folder) for j in jobs]


@pytest.mark.parametrize(("more", "name"), [("", "a"), ('name = "c"\n', "c")])
def test_a_single_model_has_its_name_in_defaults_too(
    more: str, name: str, write: Write, tmp_path: Path
) -> None:
    """`{name}` in the defaults is each job's own name, whatever stands for its model."""
    (job,) = read_jobs(write('keep = ["{name}1"]\n' + GOOD + more), tmp_path / "out")
    assert (f"{name}1",) == options_of(job).keep


def test_a_name_with_wildcards_may_be_a_file(write: Write, tmp_path: Path) -> None:
    """What is there is no pattern."""
    (tmp_path / "a[b].onnx").write_bytes((tmp_path / "a.onnx").read_bytes())
    (job,) = read_jobs(write('[[job]]\nmodel = "a[b].onnx"\n'), tmp_path / "out")
    assert "a[b]" == job.name


def test_dry_run_reads_models_and_samples(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be read is told for each job, and nothing is written."""
    np.savez(tmp_path / "odd.npz", other=np.zeros(3, np.float32))
    (tmp_path / "broken.onnx").write_bytes(b"hello")
    odd = '[[job]]\nname = "odd"\nmodel = "a.onnx"\ninputs = "odd.npz"\n'
    path = write(GOOD + odd + '[[job]]\nmodel = "broken.onnx"\n')
    assert 2 == main(["batch", str(path), "--dry-run", "--out", str(tmp_path / "out")])
    told = capsys.readouterr().err.splitlines()
    assert ["precision-bisect: odd: failed: ", "precision-bisect: broken: faile"] == [
        line[:31] for line in told
    ]
    assert not (tmp_path / "out").exists()


def test_the_example_is_right(tmp_path: Path) -> None:
    """The jobs file among the examples passes all checks."""
    jobs = read_jobs(REPO / "examples" / "jobs.toml", tmp_path)
    assert len(jobs) == len({job.name for job in jobs}) >= 2


CASES = {
    "no jobs": ("", "has no jobs"),
    "jobs are no list": ('[job]\nmodel = "a.onnx"\n', "has no jobs"),
    "no TOML": ("[[job]\n", "is no jobs file, which is TOML"),
    "another table": (GOOD + "[jobs]\n", "unknown 'jobs'"),
    "no model": ("[[job]]\ntol = 1e-2\n", "job 1 has no model"),
    "model is no text": ('[[job]]\nname = "x"\nmodel = 3\n', "job x has no model"),
    "missing model": ('[[job]]\nmodel = "absent.onnx"\n', "job absent: no such file: "),
    "missing inputs": (GOOD + 'inputs = "absent.npz"\n', "job a: no such file: "),
    "missing script": (GOOD + 'check = "absent.py:f"\n', "job a: no such file: "),
    "unknown key": (GOOD + "tolerance = 1\n", "unknown key 'tolerance'; did you mean tol?"),
    "near key": (GOOD + "max-trial = 1\n", "did you mean max-trials?"),
    "key of the batch": (GOOD + "resume = true\n", "job a: resume is no key"),
    "help": (GOOD + "help = true\n", "job a: help is no key"),
    "all help": (GOOD + "help-all = true\n", "job a: help-all is no key"),
    "no number": (GOOD + 'holdout = "many"\n', "job a: argument --holdout: invalid int"),
    "true for a value": (GOOD + "tol = true\n", "job a: tol is True"),
    "a value for a bare flag": (
        GOOD + "guard-islands = 1\n",
        "guard-islands is 1; it takes true or false",
    ),
    "a null character": (GOOD + 'inputs = "\\u0000"\n', "job a: inputs has a null character"),
    "a long path": ('[[job]]\nmodel = "' + 300 * "x" + '"\n', "no such file: "),
    "a table": (GOOD + "tol = {y = 1}\n", "job a: tol is {'y': 1}"),
    "a date": (GOOD + "max-time = 2026-01-01\n", "job a: max-time is"),
    "bad duration": (GOOD + 'max-time = "long"\n', "job a: cannot read the time 'long'"),
    "bad limit": (GOOD + 'tol = "small"\n', "job a: --tol cannot read 'small'"),
    "no limit": (GOOD + "tol = nan\n", "job a: --tol nan is not above zero"),
    "no share": (GOOD + "quantile = nan\n", "job a: --quantile nan is not above zero"),
    "no range": (GOOD + 'range = "x=1:nan"\n', "job a: --range cannot have (1.0, nan) for 'x'"),
    "no number of layers": (GOOD + "max-kept = -1\n", "job a: --max-kept -1 is below 0"),
    "no capability": (GOOD + 'compute-capability = "9"\n', "cannot be '9'; write it as 8.9"),
    "no command": (GOOD + 'on-finish = ""\n', "job a: --on-finish names no command"),
    "an empty path": (GOOD + 'inputs = ""\n', "argument --inputs: an empty path"),
    "two places": (GOOD + 'cluster = "local"\nexecutor = "local"\n', "not allowed with argument"),
    "no model of a pattern": ('[[job]]\nmodel = "no*.onnx"\n', "job 1 has no model: no*.onnx"),
    "several of one name": ('[[job]]\nname = "x"\nmodel = "?.onnx"\n', "job 1 has a name, and a"),
    "bad strategy": (GOOD + 'strategy = "guide"\n', "did you mean guided"),
    "bad combination": (GOOD + 'check = "checks.py:error"\nmetric = "l2"\n', "job a: --check"),
    "twice the model": (GOOD + GOOD, "job 2 and another are both named a"),
    "names differ by case": (GOOD + '[[job]]\nmodel = "b.onnx"\nname = "A"\n', "both named A"),
    "a folder of its own": (GOOD + 'out = "x"\n', "job a: out is no key of a job"),
    "name is a path": (GOOD + 'name = "../x"\n', "job 1 cannot be named '../x'"),
    "name is a log": (GOOD + 'name = "x.log"\n', "cannot be named"),
    "name is the record": (GOOD + 'name = "Batch.JSON"\n', "cannot be named"),
    "name is a summary": (GOOD + 'name = "summary.md"\n', "cannot be named"),
    "name is the XML": (GOOD + 'name = "junit.xml"\n', "cannot be named"),
    "name is no text": (GOOD + "name = 3\n", "cannot be named 3"),
    "same key twice": (GOOD + "max-trials = 1\nmax_trials = 2\n", "job 1 has a key twice"),
    "name by default": ('name = "x"\n' + GOOD, "[defaults] sets name"),
    "job is no table": ("[defaults]\n", "is no jobs file, which is TOML"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_file_is_one_line(
    case: str, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, one line that names the job, and nothing is written, though a job was fine."""
    text, expected = CASES[case]
    path = write(text)
    assert 2 == main(["batch", str(path), "--out", str(tmp_path / "out")])
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("precision-bisect: ")
    assert expected in line
    assert ("", False) == (captured.out, (tmp_path / "out").exists())


def test_a_missing_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No jobs file at all is wrong usage."""
    assert 2 == main(["batch", str(tmp_path / "jobs.toml")])
    assert "cannot read" in capsys.readouterr().err


def test_resume_and_overwrite_exclude_each_other(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both at once is wrong usage, as for a single run."""
    assert 2 == main(["batch", str(write(GOOD)), "--resume", "--overwrite"])
    assert "exclude each other" in capsys.readouterr().err


def test_a_dry_run_writes_nothing(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It checks the file and prints the command of each job."""
    path = write(GOOD + "tol = 1e-2\n")
    assert 0 == main(["batch", str(path), "--out", str(tmp_path / "out"), "--dry-run"])
    said = capsys.readouterr().out
    assert f"--tol=0.01 --config=none --out={tmp_path / 'out' / 'a'} --resume -- a.onnx)\n" in said
    assert not (tmp_path / "out").exists()


def test_a_dry_run_is_json_where_asked(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --json it is the record of a batch whose jobs all wait."""
    path = write(GOOD + "tol = 1e-2\n")
    out = tmp_path / "out"
    assert 0 == main(["batch", str(path), "--out", str(out), "--dry-run", "--json"])
    told = json.loads(capsys.readouterr().out)
    (job,) = told["jobs"]
    assert (str(path), None) == (told["jobs_file"], told["exit_code"])
    assert ("a", "waiting", None) == (job["name"], job["status"], job["exit_code"])
    assert [f"--out={out / 'a'}", "--resume", "--", "a.onnx"] == job["command"][-4:]
    assert not out.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere file names are text")
def test_a_folder_of_any_bytes_can_be_printed(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What standard output cannot encode is escaped, which JSON reads as the same name."""
    path = write(GOOD + "tol = 1e-2\n")
    out, printed = os.fsdecode(bytes(tmp_path / "out") + b"\xff"), tmp_path / "printed"
    with printed.open("w", encoding="utf-8", errors="strict") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert 0 == main(["batch", str(path), "--out", out, "--dry-run", "--json"])
        monkeypatch.undo()
    (job,) = json.loads(printed.read_text(encoding="utf-8"))["jobs"]
    assert f"--out={Path(out) / 'a'}" in job["command"]
