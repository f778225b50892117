"""An error of the package itself has an exit code of its own, one line, and a file."""

import json
import re
import sys
from collections.abc import Callable
from io import BufferedWriter, RawIOBase, TextIOWrapper
from pathlib import Path
from typing import NoReturn

import pytest

import tiny
from effort import nightly
from precision_bisect.commandline.internal_errors import complain
from precision_bisect.commandline.main import main
from precision_bisect.errors import ExitCode


class Panic(BaseException):
    """What libraries of other languages raise."""


def raising(error: BaseException) -> Callable[..., NoReturn]:
    """Return a function that raises it."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the small model and its inputs, in which temporary files lie, too."""
    tiny.write_with_samples(tmp_path)
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temp"))
    return tmp_path


def search(place: Path, *more: str) -> int:
    """Return the exit code of a search."""
    asked = ["--inputs", place / "inputs.npz", "--threads", "1", "--out", place / "run", *more]
    return main([str(each) for each in (place / "tiny.onnx", *asked)])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Panic("index out\nof bounds"), "Panic: index out"),
        *nightly(
            (RecursionError("deep"), "RecursionError: deep"),
            (PermissionError(13, "Permission denied", "/x"), "PermissionError: [Errno 13]"),
        ),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_traceback_is_in_the_logs_of_the_run(
    error: BaseException,
    said: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The line names the file; what was found stays, and the run can go on."""
    monkeypatch.setattr("precision_bisect.pipeline.run.conclude", raising(error))
    assert 70 == search(place)
    line = capsys.readouterr().err.splitlines()[-1]
    log = place / "run" / "logs" / "000001-internal_error.log"
    assert line.startswith(f"precision-bisect: internal error: {said}")
    assert line.endswith(f"; please report it with {log}, which has the traceback")
    text = log.read_text()
    assert "Traceback (most recent call last)" in text and type(error).__name__ in text
    assert "failed" == json.loads((place / "run" / "status.json").read_text())["state"]
    monkeypatch.undo()
    assert 0 == search(place, "--resume")


def test_without_a_run_it_is_a_temporary_file(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error before the folder exists, and one of another command, leave no folder."""
    monkeypatch.setattr("precision_bisect.pipeline.run.load_run", raising(ValueError("odd")))
    monkeypatch.setattr("precision_bisect.commandline.doctor.examine", raising(KeyError("x")))
    assert [70, 70] == [search(place), main(["doctor"])]
    for line, name in zip(
        [each for each in capsys.readouterr().err.splitlines() if "internal" in each],
        ("ValueError: odd", "KeyError: 'x'"),
        strict=True,
    ):
        found = re.search(r"report it with (\S+), which", line)
        assert found is not None
        assert Path(found[1]).parent == place / "temp"
        assert name in Path(found[1]).read_text()
    assert not (place / "run").exists()


def test_without_room_the_line_is_all(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no file can be written it is still one line with the same exit code."""
    monkeypatch.setattr("tempfile.mkstemp", raising(OSError(28, "No space left on device")))
    monkeypatch.setattr("precision_bisect.commandline.doctor.examine", raising(KeyError("x")))
    assert 70 == main(["doctor"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("please report it; there was no room for its traceback")


def test_memory_that_runs_out_is_no_internal_error(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit of the shell's meets any line of ours; nobody reports that, or it stays open."""
    monkeypatch.setattr("precision_bisect.pipeline.run.conclude", raising(MemoryError()))
    assert ExitCode.USAGE == search(place)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("precision-bisect: the memory ran out; give it more")
    assert [] == [*(place / "temp").iterdir()]


def test_no_answer_has_that_code() -> None:
    """Exit code 1 is that of a plan that does not exist; Python ends with it, too."""
    assert (1, 70) == (ExitCode.NO_PLAN, ExitCode.INTERNAL)


BROKEN = """
import precision_bisect.pipeline.run as run

def conclude(*_, **__):
    raise ZeroDivisionError("by zero")

run.conclude = conclude
"""


@pytest.mark.parametrize("path", ["a" * 300, "a/" * 3000, "loop"])
@pytest.mark.parametrize(
    "words", ["{} --tol 1e-2", "curve {}", "layers {}", "report {}", "status {}", "compare {} {}"]
)
def test_a_path_that_no_system_takes_is_bad_input(
    path: str, words: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Too long, or links in a circle: one line, whichever command meets it, and no traceback."""
    (place / "loop").symlink_to("loop")
    asked = words.format(*[place / path] * 2).split()
    assert ExitCode.USAGE == main(asked)
    assert 1 == len(capsys.readouterr().err.splitlines())
    assert [] == [*(place / "temp").iterdir()]


def test_a_signal_that_comes_while_a_line_is_written_may_complain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python refuses the stream to it then: what it says is lost, and not what it does."""

    class Interrupted(RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, content: object) -> int:
            complain("interrupted")
            written.append(content)
            return 1

    written: list[object] = []
    stream = TextIOWrapper(BufferedWriter(Interrupted()), line_buffering=True)
    monkeypatch.setattr("sys.stderr", stream)
    sys.stderr.write("\n")
    assert written
