"""Batches from beginning to end: real jobs, real processes."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnx
import pytest

from patience import PATIENCE_S
from precision_bisect.commandline.arguments.batch_flags import BatchOptions
from precision_bisect.commandline.batch.batch_run import run_batch
from precision_bisect.commandline.main import main
from precision_bisect.runs.locking import RunLock

Write = Callable[[str], Path]
Loader = Callable[..., None]
Run = Callable[..., subprocess.CompletedProcess[str]]

A = '[[job]]\nmodel = "a.onnx"\n'
BROKEN = '[[job]]\nmodel = "broken.onnx"\n'
SEGFAULT = '[[job]]\nname = "segfault"\nmodel = "a.onnx"\ncheck = "checks.py:segfault"\n'
FATAL = '[[job]]\nname = "fatal"\nmodel = "a.onnx"\ncheck = "checks.py:fatal"\n'
B = '[[job]]\nmodel = "b.onnx"\n'
FOREVER = '[[job]]\nname = "hangs"\nmodel = "a.onnx"\ncheck = "checks.py:forever"\ntol = 1e-2\n'


def batch_of(folder: Path) -> dict[str, Any]:
    """Return what the batch in a folder says of itself."""
    found: dict[str, Any] = json.loads((folder / "out" / "batch.json").read_text())
    return found


def rows(folder: Path, *keys: str) -> Sequence[Any]:
    """Return these values of each job."""
    return [tuple(job[key] for key in keys) for job in batch_of(folder)["jobs"]]


def test_a_job_that_fails_or_crashes_costs_only_itself(
    write: Write, run: Run, tmp_path: Path
) -> None:
    """A segfault and a silent exit with code 1 are told; the next job is found.

    A broken model is told before anything runs, and nothing of it does.
    """
    write(SEGFAULT + BROKEN + FATAL + B)
    (tmp_path / "broken.onnx").write_bytes(b"hello")
    ran = run()
    assert 2 == ran.returncode, ran.stderr
    assert [
        ("segfault", "failed", -11, None),
        ("broken", "failed", 2, None),
        ("fatal", "failed", 1, None),
        ("b", "found", 0, 4),
    ] == rows(tmp_path, "name", "status", "exit_code", "kept")
    told = ran.stdout.splitlines()
    assert "segfault: failed" == told[0].partition(",")[0]
    assert "its process ended by SIGSEGV (Segmentation fault); see " in told[0]
    assert told[1].startswith("broken: failed: broken.onnx is not an ONNX model")
    assert "; see " not in told[1]
    assert not (tmp_path / "out" / "broken.log").exists()
    assert ["b: found, 4 of 20 kept", "written to "] == [told[3][:22], told[4][:11]]
    assert ran.stderr.startswith("[1/4] segfault begins; ")
    last = ran.stdout.splitlines()[-2]
    assert last.startswith("b: found, 4 of 20 kept, after") and ", deploy " in last


LOADERS = {
    "crashes": (
        "os.kill(os.getpid(), signal.SIGSEGV)",
        "its process ended by SIGSEGV (Segmentation fault)",
    ),
    "exits": (
        "raise SystemExit(0)",
        "load_data() in exits.py failed: 0 (SystemExit in exits.py, line ",
    ),
    "raises": (
        "raise KeyError('a\\nb')",
        "load_data() in raises.py failed: 'a\\nb' (KeyError in raises.py, line ",
    ),
    "works": ("pass", ""),
    "works_too": ("pass", ""),
}


def test_a_loader_costs_only_its_job(
    write: Write, loader: Loader, run: Run, tmp_path: Path
) -> None:
    """Whatever it does, and whatever it leaves behind in its process; a dry run tells the same."""
    jobs = []
    for name, (body, _) in LOADERS.items():
        loader(name, body)
        jobs.append(f'[[job]]\nname = "{name}"\nmodel = "a.onnx"\ninputs = "{name}.py"\n')
    write("tol = 1e-2\n" + "".join(jobs))
    dry = run("--dry-run")
    ran = run("--at-once", "2")
    assert (2, 2) == (dry.returncode, ran.returncode), ran.stderr
    told = [message for (message,) in rows(tmp_path, "message")]
    for (_, expected), message in zip(LOADERS.values(), told, strict=True):
        assert message.startswith(expected) and bool(message) == bool(expected)
        assert message in dry.stderr
    assert ["failed"] * 3 + ["found"] * 2 == [status for (status,) in rows(tmp_path, "status")]
    assert "I said nothing" not in ran.stderr + dry.stderr + dry.stdout


def test_time_that_is_up_ends_the_reading(
    write: Write, loader: Loader, run: Run, tmp_path: Path
) -> None:
    """A loader that hangs costs no more than a job that does."""
    loader("hangs")
    write('[[job]]\nmodel = "a.onnx"\ninputs = "hangs.py"\n' + B)
    tried = (
        run("--resume", "--until", datetime.fromtimestamp(time.time() + ahead_s, UTC).isoformat())
        for ahead_s in (2.0, 20.0, PATIENCE_S)
    )
    # On a busy machine the time may be up before the loader begins.
    ran = next(each for each in tried if (tmp_path / "calls").exists())
    assert 3 == ran.returncode, ran.stderr
    assert [("waiting", None)] * 2 == rows(tmp_path, "status", "exit_code")


def test_what_is_written(
    write: Write, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run folder, a log and an entry per job, as in result.json; --json prints batch.json."""
    write("tol = 1e-2\n" + A)
    ran = run("--json")
    assert 0 == ran.returncode, ran.stderr
    batch = json.loads(ran.stdout)
    assert batch_of(tmp_path) == batch
    assert (0, False, None) == (batch["exit_code"], batch["interrupted"], batch["until"])
    (job,) = batch["jobs"]
    result = json.loads((tmp_path / "out" / "a" / "result.json").read_text())
    assert len(result["kept"]) == job["kept"]
    for key in ("candidates", "status"):
        assert result[key] == job[key]
    assert "Found: 4 of 20 layers stay FP32" in (tmp_path / "out" / "a.log").read_text()
    assert str(tmp_path / "out" / "a") == job["run_folder"]
    assert result["wall_s"] <= job["seconds"]
    assert 0 == main(["status", str(tmp_path / "out"), "--json"])
    assert 0 == main(["show", str(tmp_path / "out")])
    shown, _, line = capsys.readouterr().out.partition("}\na: ")
    assert batch == json.loads(shown + "}")
    assert line.startswith("found, 4 of 20 kept, after ")
    assert 0 == run("--overwrite").returncode
    log = (tmp_path / "out" / "a.log").read_text()
    assert (1, False) == (log.count("$ precision-bisect run "), "resuming after" in log)


def test_a_batch_survives_what_it_cannot_write(write: Write, tmp_path: Path) -> None:
    """A log that cannot be opened costs its job; a record that cannot be written is a warning."""
    said: list[str] = []
    options = BatchOptions(jobs_file=write(A + B), out=tmp_path / "out")
    (tmp_path / "out" / "a.log").mkdir(parents=True)

    def say(line: str) -> None:
        said.append(line)
        if "b begins" in line:
            (tmp_path / "out" / "batch.json").unlink()
            (tmp_path / "out" / "batch.json").mkdir()

    record = run_batch(options, say, say)
    assert ["failed", "found"] == [job.status for job in record.jobs]
    assert "cannot start a job that writes" in record.jobs[0].message
    assert any(line.startswith("Warning: cannot write") for line in said)


def test_of_a_log_only_the_end_is_read(write: Write, run: Run, tmp_path: Path) -> None:
    """A loader may have printed more than the memory holds."""
    write(FATAL)
    assert 2 == run().returncode
    os.truncate(tmp_path / "out" / "fatal.log", 2**40)
    ran = run("--resume")
    assert 2 == ran.returncode, ran.stderr
    assert [("failed", 1)] == rows(tmp_path, "status", "exit_code")


def test_resume_runs_only_what_is_left(write: Write, run: Run, tmp_path: Path) -> None:
    """A second batch is refused; --resume leaves what is found alone and goes on with the rest."""
    write(A + B + "max-trials = 3\n")
    assert 3 == run().returncode
    before = (tmp_path / "out" / "a" / "result.json").stat()
    refused = run()
    assert 2 == refused.returncode
    assert "already holds a batch; go on with --resume" in refused.stderr
    write(A + B + "max-trials = 60\n")
    resumed = run("--resume")
    assert 0 == resumed.returncode, resumed.stderr
    first, second, _ = resumed.stdout.splitlines()
    assert first.startswith("a: found, 4 of 20 kept") and first.endswith("; not run again")
    assert second.startswith("b: found, 4 of 20 kept")
    assert resumed.stderr.startswith("[2/2] b begins") and "found" not in resumed.stderr
    assert "resuming after" in (tmp_path / "out" / "b.log").read_text()
    assert before == (tmp_path / "out" / "a" / "result.json").stat()
    assert [("found", 4)] * 2 == rows(tmp_path, "status", "kept")


def test_a_job_that_has_changed_is_refused(write: Write, run: Run, tmp_path: Path) -> None:
    """With another tolerance its run stays, and its line says why."""
    write("max-trials = 1\n" + A + "tol = 1e-2\n")
    assert 3 == run().returncode
    former = (tmp_path / "out" / "a" / "result.json").read_bytes()
    write("max-trials = 1\n" + A + "tol = 2e-2\n")
    ran = run("--resume")
    assert 2 == ran.returncode, ran.stderr
    assert former == (tmp_path / "out" / "a" / "result.json").read_bytes()
    ((status, message),) = rows(tmp_path, "status", "message")
    assert "failed" == status and "cannot resume" in message


def test_a_model_that_has_changed_is_searched_again(
    write: Write, run: Run, tmp_path: Path
) -> None:
    """A night goes on with all others as they are; one that was only copied anew is the same."""
    write(A + B)
    assert 0 == run().returncode
    for name in "ab":
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(path.read_bytes())
    other = onnx.load(tmp_path / "b.onnx")
    other.graph.node[0].name += "_renamed"
    onnx.save(other, tmp_path / "b.onnx")
    ran = run("--resume")
    assert 0 == ran.returncode, ran.stderr
    assert "b: the model has changed, so it is searched again\n" in ran.stderr
    assert "a: the model" not in ran.stderr
    assert "_renamed" in (tmp_path / "out" / "b" / "layers.json").read_text()
    assert [("found", 4)] * 2 == rows(tmp_path, "status", "kept")


def test_jobs_run_at_once_each_on_its_gpu(write: Write, run: Run, tmp_path: Path) -> None:
    """Two jobs that wait for each other meet; a third takes the place of the first that ends."""
    meets = 'check = "checks.py:meets"\ntol = 1e-2\nmax-time = "600s"\n'
    write("max-trials = 2\n" + A + meets + B + meets + '[[job]]\nname = "c"\nmodel = "a.onnx"\n')
    ran = run("--at-once", "gpu:3,7")
    assert 3 == ran.returncode, ran.stderr
    assert {"met-3", "met-7"} == {path.name for path in tmp_path.glob("met-*")}
    assert [(3,)] * 3 == rows(tmp_path, "exit_code")
    begun = ["a begins", "b begins"]
    assert begun == sorted(line[6:14] for line in ran.stderr.splitlines()[:2])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("0", "cannot be 0; give 1 to 4096"),
        ("gpu:", "gpu: is no number"),
        ("x", "x is no"),
        ("99999999999", "cannot be 99999999999; give"),
        ("9" * 5000, "9" * 5000 + " is no number"),
    ],
)
def test_nothing_or_too_much_at_once_is_refused(
    given: str, told: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    """A number of threads that a system has, or GPUs."""
    assert 2 == main(["batch", str(write(A)), "--at-once", given])
    assert f"--at-once {told}" in capsys.readouterr().err


@pytest.mark.parametrize(("places", "code"), [("gpu:2", 2), ("gpu:2,3", 2), ("2", 0)])
def test_gpus_are_named_once(
    places: str, code: int, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job's workers would leave the GPU that the batch gives it."""
    path = write(A + B + 'backend = []\nworkers = "gpu:0,1"\n')
    assert code == main(["batch", str(path), "--at-once", places, "--dry-run"])
    clash = "job b: workers and --at-once both name GPUs; leave one out"
    assert (code > 0) == (clash in capsys.readouterr().err)


def test_no_plan_is_exit_code_one(write: Write, run: Run, tmp_path: Path) -> None:
    """A job that ends without a plan has ended well for itself, and shows in the code."""
    once = "import pathlib\nasked = pathlib.Path(__file__).with_name('asked')\n"
    body = "    first = not asked.exists()\n    asked.touch()\n    return first\n"
    (tmp_path / "once.py").write_text(f"{once}def no(outputs, reference):\n{body}")
    write(A + 'check = "once.py:no"\n')
    assert 1 == run().returncode
    assert [("not_precision", 1, None)] == rows(tmp_path, "status", "exit_code", "kept")
    resumed = run("--resume")
    assert 1 == resumed.returncode
    assert "not run again" in resumed.stdout


def test_a_run_that_is_there_already_is_refused(write: Write, run: Run, tmp_path: Path) -> None:
    """The folder of a job may hold a run of the user's: nothing is touched."""
    write(A)
    main([str(tmp_path / "a.onnx"), "--backend=emulated", f"--out={tmp_path / 'out' / 'a'}"])
    ran = run()
    assert 2 == ran.returncode
    assert "job a: " in ran.stderr and "already holds a run" in ran.stderr


def test_two_batches_on_one_folder_are_refused(write: Write, run: Run, tmp_path: Path) -> None:
    """The second names the first."""
    write(A)
    (tmp_path / "out").mkdir()
    with RunLock(tmp_path / "out") as lock:
        lock.open(overwrite=False, rungs=False)
        ran = run()
    assert 2 == ran.returncode
    assert f"in use by process {os.getpid()}" in ran.stderr


def test_a_damaged_record_is_one_line(write: Write, run: Run, tmp_path: Path) -> None:
    """--resume refuses a batch.json that it cannot read."""
    write(A)
    (tmp_path / "out").mkdir()
    for text in ("", "[]", '{"schema": 9}', '{"schema": 1, "jobs": [{}]}', '{"schema": 1}'):
        (tmp_path / "out" / "batch.json").write_text(text)
        ran = run("--resume")
        assert (2, 1) == (ran.returncode, len(ran.stderr.splitlines()))
        assert "cannot read" in ran.stderr


@pytest.mark.nightly
def test_time_that_is_up_leaves_jobs_for_the_next(write: Write, run: Run, tmp_path: Path) -> None:
    """The running job is asked to end, the next is not started: exit code 3; both go on."""
    write(FOREVER + B)
    untils = (
        datetime.fromtimestamp(time.time() + ahead_s, UTC).isoformat()
        for ahead_s in (6.0, 30.0, PATIENCE_S)
    )
    tried = ((until, run("--resume", "--until", until)) for until in untils)
    until, ran = next(each for each in tried if (tmp_path / "forever").exists())
    assert 3 == ran.returncode, ran.stderr
    assert [("interrupted", 130), ("waiting", None)] == rows(tmp_path, "status", "exit_code")
    assert "b: the time is up; it is left for --resume" in ran.stderr
    assert until == batch_of(tmp_path)["until"]
    (tmp_path / "hurry").touch()
    assert 0 == run("--resume").returncode
    assert [("found",), ("found",)] == rows(tmp_path, "status")
