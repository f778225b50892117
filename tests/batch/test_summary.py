"""What a batch leaves for people and services: a gate's reason, summaries, and `compare`."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from precision_bisect.commandline.batch.batch_record import (
    JUNIT,
    SUMMARY,
    Batch,
    Job,
    JobState,
    junit,
    markdown,
)
from precision_bisect.commandline.ci_reports import tell_github_of_jobs
from precision_bisect.commandline.main import main

Write = Callable[[str], Path]
Ran = subprocess.CompletedProcess[str]
Run = Callable[..., Ran]

B = '[[job]]\nmodel = "b.onnx"\n'
HOSTILE = "a | b <script>\x00`*_[x](y)$z$\ud800&amp;"


def test_a_failed_gate_says_why(gated: Ran) -> None:
    """In the lines, in batch.json, in both summaries, and by the exit code.

    A job without a baseline passes, and tells of it there, too: its path may be a slip.
    """
    ran = gated
    assert 1 == ran.returncode, ran.stderr
    why = "the answer keeps 4 layers, --max-kept is 1"
    assert f": {why}; see " in ran.stdout.splitlines()[0]
    out = Path(ran.args[-1])
    first, second = json.loads((out / "batch.json").read_text())["jobs"]
    assert ("found", 1, why, 4) == tuple(
        first[key] for key in ("status", "exit_code", "message", "kept")
    )
    new = "there is no baseline later.json: the answer is new"
    assert ("found", 0, new) == tuple(second[key] for key in ("status", "exit_code", "message"))
    head, _, row, other = (out / SUMMARY).read_text().splitlines()
    assert "| job | ended | FP32 layers | time | why |" == head
    assert "| gated | found | 4 of 20 |" == row[:27]
    assert "the answer keeps 4 layers" in row
    assert other.startswith("| b | found | 4 of 20 |") and other.endswith(f"| {new} |")
    suite = ElementTree.parse(out / JUNIT).getroot()
    assert ("2", "1", "0") == tuple(suite.get(key) for key in ("tests", "failures", "errors"))
    failed, held = suite
    assert why == failed.find("failure").get("message")  # type: ignore[union-attr]
    assert ("b", None) == (held.get("name"), held.find("failure"))
    told = {each.get("name"): each.get("value") for each in held[0]}
    assert ("found", "4", "20") == (told["status"], told["kept"], told["candidates"])
    log = str(told["log"])
    assert log.endswith("b.log") and log in str(held.findtext("system-out"))


def job(name: str, state: str, code: int | None, message: str = "") -> Job:
    """Return a job as it stands in `batch.json`."""
    return Job(
        name=name,
        model="m.onnx",
        model_stamp=[1, 2],
        command=[],
        run_folder=f"/{name}",
        log=f"/{name}.log",
        status=state,
        exit_code=code,
        message=message,
    )


def test_untrusted_text_stays_text() -> None:
    """A message cannot end its cell, bring markup, or break the XML."""
    jobs = [job("x", JobState.FAILED, 2, HOSTILE), job("y", JobState.WAITING, None)]
    batch = Batch(jobs_file=f"/{HOSTILE}.toml", started="", jobs=jobs)
    row = markdown(batch).splitlines()[2]
    assert "a \\| b &lt;script&gt;\ufffd\\`\\*\\_\\[x\\]\\(y\\)\\$z\\$\ufffd&amp;amp;" in row
    suite = ElementTree.fromstring(junit(batch).encode())
    assert ("1", "1") == (suite.get("errors"), suite.get("skipped"))
    error = suite[0].find("error")
    assert error is not None and "a | b <script>\ufffd`*_[x](y)$z$\ufffd&amp;" == error.get(
        "message"
    )


def test_github_is_told_of_each_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What failed comes first, for few annotations are shown; the step's summary is the table."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    jobs = [job("good", "found", 0), job("late", JobState.WAITING, None)]
    jobs.append(job("new", "found", 0, "no baseline"))
    jobs.append(job("bad", JobState.FAILED, 2, "no such file\n::warning::x"))
    tell_github_of_jobs(Batch(jobs_file="jobs.toml", started="", jobs=jobs))
    lines = capsys.readouterr().err.splitlines()
    levels = [line.partition(" title=precision-bisect::")[0] for line in lines]
    assert ["::error", "::warning", "::warning", "::notice"] == levels
    assert "::bad: failed: no such file" in lines[0]
    assert (
        markdown(Batch(jobs_file="", started="", jobs=jobs))
        in (tmp_path / "summary.md").read_text()
    )


def test_two_batches_are_compared_by_job(
    gated: Ran, write: Write, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A batch is the same as itself, also where it was moved; other answers are exit code 1."""
    before = Path(gated.args[-1])
    assert 0 == main(["compare", str(before), str(before)])
    assert ["gated: the same 4 kept", "b: the same 4 kept"] == (
        capsys.readouterr().out.splitlines()
    )
    write(B + 'tol = 1.0\n[[job]]\nname = "new"\nmodel = "a.onnx"\n')
    assert 0 == run().returncode
    assert 1 == main(["compare", str(before), str(tmp_path / "out")])
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("b: 4 -> 2 kept (0 added, 2 removed), error ")
    assert ["new: no such job before", "gated: no such job after"] == [second, third]
    assert 1 == main(["compare", str(before), str(tmp_path / "out"), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert 0 == main(["compare", str(before / "batch.json"), str(before)])
    capsys.readouterr()
    assert ["b", "new", "gated"] == [each["name"] for each in told["jobs"]]
    assert 2 == len(told["jobs"][0]["change"]["removed"])
    assert 2 == main(["compare", str(before), str(before / "b")])
    assert "holds no batch.json; compare two batches, or two runs" in capsys.readouterr().err
