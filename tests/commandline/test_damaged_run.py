"""Damaged files of a run folder: no command that reads them ends in a traceback."""

import copy
import json
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from math import inf
from pathlib import Path
from typing import Any

import pytest

import tiny
from effort import nightly
from precision_bisect.commandline.main import main
from precision_bisect.errors import PrecisionBisectError
from precision_bisect.explaining.diagnosis.findings import (
    Advice,
    Birth,
    Findings,
    Hurt,
)
from precision_bisect.plan import Plan
from precision_bisect.runs import plain_json
from precision_bisect.runs.results.curve_of_result import KeptError
from precision_bisect.runs.results.run_status import EndedTrial, RunningTrial
from precision_bisect.runs.runfolder import DIAGNOSIS, LAYERS, LEDGER, RESULT, STATUS
from precision_bisect.trial import Outcome, Phase, Proposal, TrialStatus, Verdict
from run_folders import finding, names, write_run, write_status

DEEP = "[" * 200_000
"""No parser of Python's follows this."""
NESTED = '{"schema":1,"x":' + "[" * 300 + "]" * 300 + "}"
"""This one is read, but what walks it may not come to its end."""
CONTENTS = {
    "deep": DEEP.encode(),
    "objects": b'{"a":' * 200_000,
    "nested": NESTED.encode(),
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "huge": b"1e999",
    "bytes": b"\xff\xfe\x00",
    "object": b"{}",
    "nan": b'{"schema":1,"a":NaN}',
}
FINDINGS = Findings(
    low="fp16",
    layers=[
        finding(
            name,
            "output reaches 1e+05",
            figures={"alone_error": inf, "tensor": "t", "sample": 0, "index": [1], "largest": 1e5},
            hurts=Hurt(output="y", error=inf, path=[name, "b"], errors=[0.1, None]),
            advice=["scale"],
        )
        for name in names(2)
    ],
    spread=[Birth(layer="a", born="Inf", path=["a"], output=None)],
    advice=[Advice(id="scale", title="Scale", text="Do.", layers=["a"], evidence="seen")],
)
PROPOSAL = Proposal(plan=Plan.of([1]))
RUNNING = RunningTrial.of(PROPOSAL, seconds=1.5)
LAST = EndedTrial.by(
    PROPOSAL, Outcome(status=TrialStatus.FINISHED, verdict=Verdict.PASS, error=inf, wall_s=1.0)
)
BEST = KeptError(kept=2, error=0.1)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the folder of a finished run, with a diagnosis."""
    folder = write_run(tmp_path / "run", names(12), [3, 5])
    write_status(folder, phase=Phase.SEARCH, in_flight=[RUNNING], last=[LAST], best=BEST)
    (folder / DIAGNOSIS).write_text(FINDINGS.to_text(), encoding="utf-8")
    return folder


def commands(run: Path) -> list[list[str]]:
    """Return a call of every command that reads a run folder, `compare` from both sides."""
    other = run.with_name("other")
    return [
        ["status", str(run)],
        ["status", str(run), "--json"],
        ["report", str(run), "--out", str(run.with_name("page.html"))],
        ["explain", str(run)],
        ["show", str(run)],
        ["compare", str(run), str(other)],
        ["compare", str(other), str(run)],
    ]


def check(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Every command answers, or refuses in one line with a code of its own."""
    for command in commands(run):
        code = main(command)
        said = capfd.readouterr().err
        assert code in (0, 1, 2), command
        if code == 2:
            assert said.startswith("precision-bisect: "), command
            assert 1 == said.count("\n"), command
        assert len(said) < 2_000, command


@pytest.mark.parametrize("name", [STATUS, DIAGNOSIS, LAYERS, RESULT, LEDGER])
@pytest.mark.parametrize(
    "damage",
    [
        *("nested", "empty", "bytes", "nan", "link to nowhere"),
        *nightly("deep", "objects", "null", "list", "huge", "object"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(
    damage: str, name: str, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever a file holds, what reads it says so, and what does not need it goes on."""
    shutil.copytree(run, run.with_name("other"))
    if damage in CONTENTS:
        (run / name).write_bytes(CONTENTS[damage])
    else:
        (run / name).unlink()
        (run / name).symlink_to("nowhere")
    check(run, capfd)


@pytest.mark.parametrize("damage", [DEEP, NESTED, "null", "{}"])
@pytest.mark.parametrize(
    "change",
    ["UPDATE trials SET evidence = ?", "UPDATE header SET value = ? WHERE key = 'low'"],
)
def test_a_damaged_row_of_the_ledger_is_refused_in_one_line(
    change: str, damage: str, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """JSON inside the ledger is as little trusted as that beside it."""
    shutil.copytree(run, run.with_name("other"))
    with closing(sqlite3.connect(run / LEDGER)) as ledger, ledger:
        ledger.execute(change, (damage,))
    check(run, capfd)


@pytest.mark.parametrize("case", ["", "fused", "tf32,fused"])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("evidence", '{"one_by_one": {"numbers": [1], "errors": [0.0]}}'),
        ("evidence", '{"one_by_one": {"numbers": [0], "errors": [0.0, 0.0]}}'),
        ("evidence", '{"one_by_one": {"numbers": [0], "errors": [0.0], "failed": [1]}}'),
        ("samples", "1"),
        ("plan", "f" * 9),
        ("plan", "-1"),
        ("plan", "0f"),
    ],
)
def test_trials_of_other_samples_or_layers_are_not_resumed(
    column: str, value: str, case: str, tmp_path: Path
) -> None:
    """A run of 20 layers and one sample; a case of other layers may have more of them."""
    model, run = tiny.write_model(tmp_path / "tiny.onnx"), tmp_path / "run"
    tiny.search(model, run, max_trials=2)
    with closing(sqlite3.connect(run / LEDGER)) as ledger, ledger:
        sql = f"UPDATE trials SET {column} = ?, case_name = ? WHERE id = 2"
        ledger.execute(sql, (value, case))
    if case and value == "f" * 9:
        assert tiny.search(model, run, max_trials=2, resume=True).trials
        return
    with pytest.raises(PrecisionBisectError, match=r"trials of other layers|cannot read"):
        tiny.search(model, run, max_trials=2, resume=True)


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each value inside a value, by keys and indices."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield (*way, key)
        if isinstance(value[key], dict | list):
            yield from places(value[key], (*way, key))


GONE = object()
OTHERS: list[Any] = [None, 1, -1.5, "x", [], [[]], {}, {"a": 1}, True, GONE]


def changed(told: Any, way: tuple[Any, ...]) -> Iterator[Any]:
    """Yield copies of a value in which that at the end of the way is another, or gone."""
    for other in OTHERS:
        found = copy.deepcopy(told)
        inside = found
        for key in way[:-1]:
            inside = inside[key]
        if other is GONE:
            del inside[way[-1]]
        else:
            inside[way[-1]] = other
        yield found


@pytest.mark.parametrize(
    ("name", "command"), [(DIAGNOSIS, ("explain", "-v")), (STATUS, ("status",))]
)
def test_a_file_is_told_whole_or_refused(
    name: str, command: Sequence[str], run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whichever value of a diagnosis or a status is another, or gone, nothing else is told."""
    whole = plain_json.read_object(run / name)
    for way in places(whole):
        for told in changed(whole, way):
            (run / name).write_text(json.dumps(told), encoding="utf-8")
            code = main([command[0], str(run), *command[1:]])
            said = capfd.readouterr()
            assert (code, said.err) == (0, "") or (code, said.err.count("\n")) == (2, 1), way


def test_json_is_read_as_deep_as_a_run_writes_it(tmp_path: Path) -> None:
    """The bound is on what is nested, objects and lists alike; bytes that are no text survive."""
    inside = plain_json.DEEPEST - 1
    text = '{"a":' * inside + "1" + "}" * inside
    assert json.loads(text) == plain_json.parse(text)
    with pytest.raises(ValueError, match="too deep"):
        plain_json.parse("[" * (inside + 1) + text + "]" * (inside + 1))
    path = tmp_path / "a.json"
    path.write_bytes(b'{"path": "/m/\xff"}')
    assert {"path": "/m/\udcff"} == plain_json.read_object(path)
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="no JSON object"):
        plain_json.read_object(path)
