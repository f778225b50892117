"""`show` prints the final screen of any ending again, from an untrusted result.json."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
from precision_bisect.commandline.main import main
from precision_bisect.errors import RunFolderError
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Inputs, Pinned, Result
from precision_bisect.runs.results.saved import read_saved
from precision_bisect.runs.results.speed_report import FrontPoint, SpeedReport
from precision_bisect.runs.runfolder import RESULT, STATUS
from run_folders import names, result_of, write_run, write_status

LAYERS = names(60)
FRONT_POINT = FrontPoint(
    kept_count=2,
    kept=LAYERS[:2],
    passed=True,
    error=0.008,
    latency_ms=1.5,
    spread_ms=0.01,
    speedup=2.0,
    cost=None,
)
EVERYTHING = result_of(
    LAYERS,
    [3, 4, 17],
    noise_floor=float("inf"),
    tolerance={"atol": {"y": 1e-2}},
    latency_ms={"all_high": 3.0, "all_low": None, "kept": 1.5},
    speed=SpeedReport(max_latency_ms=2.0, min_speedup=None, latency_ms=1.5, speedup=2.0, met=True),
    front=[FRONT_POINT],
    pinned=[Pinned(layer="/a/Cumsum", reason="no form in fp16")],
    notes=["a remark"],
    inputs=Inputs(synthetic=True, samples=4),
    unresolved={"crashed": 2},
)


def saved(folder: Path, result: Result) -> Path:
    """Write a result where a run would, and return its folder."""
    folder.mkdir(exist_ok=True)
    (folder / RESULT).write_text(result.to_text(), encoding="utf-8")
    return folder


def shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what `show` prints of a folder."""
    assert 0 == main(["show", str(folder)])
    return capsys.readouterr().out


def test_the_screen_is_the_one_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words of a real run's own screen come again, folded at 80 columns."""
    monkeypatch.chdir(tmp_path)  # a longer path would be folded itself
    model = tiny.write_model(Path("m.onnx"))
    main([str(model), "--synthetic", "1", "--backend", "emulated", "--out", "run"])
    expected = capsys.readouterr().out.split()
    assert expected == shown(Path("run"), capsys).split()


def test_json_is_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints result.json byte by byte, from the folder and from the file."""
    folder = saved(tmp_path / "run", EVERYTHING)
    for path in (folder, folder / RESULT):
        assert 0 == main(["show", str(path), "--json"])
        assert (folder / RESULT).read_text() == capsys.readouterr().out


def test_lines_fit_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Layers and facts are folded, names without their middle; only commands may be longer."""
    long = ["/".join(["block"] * 30) + "/Op", "/m/" + "x" * 99, "/m/\u5c64" + "\u5c64" * 60]
    result = replace(result_of(long, [0, 1, 2]), notes=["word " * 60])
    lines = shown(saved(tmp_path / "run", result), capsys).splitlines()
    commands = next(i for i, line in enumerate(lines) if "Next" in line)
    assert max(sum(1 + (ord(c) > 0x3000) for c in line) for line in lines[:commands]) <= 80
    assert any(long[0][:9] in line and "…" in line and long[0][-9:] in line for line in lines)


@pytest.mark.parametrize("status", Status)
def test_every_ending_is_shown(
    status: Status, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that was cut off before any plan passed is no error, nor is one without an answer."""
    result = replace(result_of(LAYERS, []), status=status, rungs=[], error=None)
    assert "Next" in shown(saved(tmp_path / "run", result), capsys)


def test_the_status_file_adds_model_and_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are not in result.json; a damaged status file takes nothing from the answer."""
    result = replace(result_of(LAYERS, []), status=Status.INFEASIBLE, rungs=[])
    folder = saved(tmp_path / "run", result)
    write_status(folder, "/models/a.onnx", state="finished", message="noise")
    assert "No plan satisfies the limits: noise" in shown(folder, capsys)
    assert Path("/models/a.onnx") == read_saved(folder).model
    (folder / STATUS).write_text("[")
    assert "No plan satisfies the limits\n" in shown(folder, capsys)


def test_a_former_answer_is_called_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While a run goes on that has ended before, a warning says where to look."""
    folder = saved(tmp_path / "run", EVERYTHING)
    write_status(folder)
    assert 0 == main(["show", str(folder)])
    assert "has gone on since" in capsys.readouterr().err


def test_names_are_literal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences and markup in names and in the model's path are shown, not obeyed."""
    folder = saved(tmp_path / "run", result_of(["/a/\x1b[31mred", "/a/[bold]b"], [0, 1]))
    write_status(folder, "\x1b[31m.onnx")
    text = shown(folder, capsys)
    assert "\x1b" not in text
    assert "[bold]b" in text


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"schema": 2}', "its schema is 2"),
        (b'{"schema": 1}', "missing required field `status`"),
    ],
)
def test_other_files_are_refused(content: bytes, says: str, tmp_path: Path) -> None:
    """A file that is no result is named, in one line."""
    (tmp_path / RESULT).write_bytes(content)
    with pytest.raises(RunFolderError, match=says):
        read_saved(tmp_path)


def test_the_damaged_value_is_named_by_its_path(tmp_path: Path) -> None:
    """The error leads to the value, however deep it is."""
    told = EVERYTHING.to_json()
    told["certificate"]["checked"] = 7
    (tmp_path / RESULT).write_text(json.dumps(told))
    with pytest.raises(RunFolderError, match=r"got `int` - at `\$\.certificate\.checked`"):
        read_saved(tmp_path)


def test_a_folder_without_a_result_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and what to name."""
    assert 2 == main(["show", str(tmp_path)])
    (line,) = capsys.readouterr().err.splitlines()
    assert "no finished run" in line


def test_a_timed_run_shows_its_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What only an engine tells is there, too."""
    folder = write_run(tmp_path / "run", LAYERS, [3, 4], timed=True)
    result = replace(read_saved(folder).result, speed=EVERYTHING.speed)
    assert "at most 2 ms asked: met" not in shown(folder, capsys)
    assert "1.5 ms; at most 2 ms asked: met" in shown(saved(folder, result), capsys)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(
    key=st.sampled_from(sorted(EVERYTHING.to_json())),
    inner=st.sampled_from([each.name for each in fields(FRONT_POINT)]),
    value=JSON,
)
def test_any_value_is_shown_or_refused(
    key: str, inner: str, value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nothing that a result.json may hold ends in another exception than ours."""
    told = EVERYTHING.to_json()
    (point,) = told["front"]
    for changed in ({key: value}, {"front": [{**point, inner: value}]}):
        folder = tmp_path_factory.mktemp("any")
        (folder / RESULT).write_text(json.dumps({**told, **changed}))
        assert main(["show", str(folder)]) in (0, 2)
