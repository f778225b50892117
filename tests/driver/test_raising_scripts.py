"""A script of the user's may raise or return anything: that is one line, wherever it runs."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from precision_bisect.commandline.main import main
from precision_bisect.errors import UsageError
from precision_bisect.judging.comparators.script import ScriptComparator
from precision_bisect.machine.answered_signals import Interrupted
from precision_bisect.machine.user_scripts import ScriptFailed, running_script

HEAD = """
import os, sys
from os import _exit

class Odd(BaseException):
    pass

class Mute(Exception):
    def __str__(self):
        raise SystemExit(7)

class Figure:
    def __float__(self):
        raise Odd("no figure")

def forked():
    child = os.fork()
    if child == 0:
        os._exit(5)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def error(outputs, reference):
"""
RAISED = {
    "raise MemoryError": "MemoryError",
    "raise Odd('strange')": "strange",
    "raise Odd": "Odd",
    "raise Mute": "Mute",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "raise GeneratorExit": "GeneratorExit",
    "raise StopIteration": "StopIteration",
    "sys.exit(1)": "1",
    "sys.exit('bad')": "bad",
    "sys.exit()": "SystemExit",
    "os._exit(3)": "os._exit(3)",
    "_exit(0)": "os._exit(0)",
    "return error(outputs, reference)": "maximum recursion depth exceeded",
    "return Figure()": "no figure",
    "raise ValueError('two\\nlines\\x1b')": "two",
}
RETURNED = {
    "return 10**400": "int",
    "return 1j": "complex",
    "return None": "NoneType",
    "return [0.1]": "list",
    "return 'low'": "str",
}
WORDS = {
    **{line: f"check.py:error failed: {said}" for line, said in RAISED.items()},
    **{line: f"check.py:error returned {kind}, which" for line, kind in RETURNED.items()},
}
"""What a check does, and what is said of it."""
CHILDREN = ("return 10**400", "raise Odd('strange')", "raise KeyboardInterrupt")
"""Of those that end no process and no memory, in children: these are outcomes of the trial."""


def write_check(folder: Path, line: str) -> Path:
    """Write a check whose function does that, and return its path."""
    path = folder / "check.py"
    path.write_text(f"{HEAD}    {line}\n")
    return path


def run(folder: Path, line: str, *more: str) -> int:
    """Return the exit code of a search of the small model with a check that does that."""
    model = tiny.write_with_samples(folder)
    asked = ["--inputs", folder / "inputs.npz", "--check", f"{write_check(folder, line)}:error"]
    asked += ["--tol", "1e-2", "--threads", "1", "--out", folder / "run", *more]
    return main([str(part) for part in (model, *asked)])


def judge(path: Path) -> Any:
    """Have a check judge one output."""
    sample = [{"y": np.zeros(2, np.float32)}]
    return ScriptComparator(path, "error", 0.1).judge(sample, sample)


@pytest.mark.parametrize("line", [line for line in WORDS if "Interrupt" not in line])
def test_whatever_a_check_does_is_one_error(line: str, tmp_path: Path) -> None:
    """The error says in one printable line what it was."""
    with pytest.raises(UsageError) as caught:
        judge(write_check(tmp_path, line))
    assert caught.value.one_line().startswith(WORDS[line])
    assert caught.value.one_line().isprintable()


@pytest.mark.parametrize(
    ("line", "more"),
    [
        *((each, "--isolate never") for each in ("os._exit(3)", "raise MemoryError", *CHILDREN)),
        *((each, "--workers 2") for each in ("raise KeyboardInterrupt", "raise Odd('strange')")),
        *((each, "--isolate always") for each in CHILDREN),
    ],
)
def test_a_run_ends_in_one_line(
    line: str, more: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In whatever thread or process that is exit code 2, no interrupt, and no traceback."""
    code, said = run(tmp_path, line, *more.split()), capsys.readouterr()
    assert (2, "") == (code, said.out)
    assert said.err.splitlines()[-1].startswith(f"precision-bisect: {WORDS[line]}")
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("os._exit(3)", "its process ended with exit code 3"),
        ("raise MemoryError", "out of memory"),
    ],
)
def test_the_end_of_a_child_is_an_outcome(
    line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run ends early, with what the trials came to; the check judges well in the parent."""
    own = f"{tmp_path / 'pid'}"
    there = f"import pathlib; pid = pathlib.Path({own!r})"
    first = "pid.exists() or pid.write_text(str(os.getpid()))"
    else_ = f"if pid.read_text() != str(os.getpid()): {line}"
    pairs = "for o, r in zip(outputs, reference) for n, a in o.items()"
    good = f"return max(float(abs(a - r[n]).max()) {pairs})"
    assert 3 == run(tmp_path, "\n    ".join((there, first, else_, good)), "--isolate", "always")
    shown = capsys.readouterr()
    assert said in " ".join(shown.out.split())
    assert "Traceback" not in shown.err


def test_a_child_that_a_script_forks_may_end_itself(tmp_path: Path) -> None:
    """There `os._exit` is what it says; afterwards it is the system's again."""
    found = judge(write_check(tmp_path, "return forked() / 100"))
    assert 0.05 == found.error
    assert os._exit.__module__ == "posix"


@pytest.mark.parametrize("where", ["importing", "load_data"])
@pytest.mark.parametrize("line", ["os._exit(3)", "raise KeyboardInterrupt", "sys.exit(0)"])
def test_scripts_that_give_inputs_are_no_different(
    where: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While it is loaded and while it gives samples, what such a script does is one line."""
    script = tmp_path / "inputs.py"
    script.write_text(
        f"import os, sys\n{line}\n"
        if where == "importing"
        else f"import os, sys\ndef load_data():\n    {line}\n"
    )
    model = tiny.write_model(tmp_path / "m.onnx")
    assert 2 == main([str(model), "--inputs", str(script)])
    (said,) = capsys.readouterr().err.splitlines()
    assert str(script) in said


def test_an_interrupt_is_none_of_the_scripts(tmp_path: Path) -> None:
    """What a handler of signals raises passes; in another thread nothing is a signal."""
    for real in (Interrupted(), KeyboardInterrupt()):
        with pytest.raises(type(real)), running_script(tmp_path / "a.py"):
            raise real
    with pytest.raises(KeyboardInterrupt), running_script(tmp_path / "a.py"):
        os.kill(os.getpid(), signal.SIGINT)
    failed: list[BaseException] = []

    def inside() -> None:
        try:
            with running_script(tmp_path / "a.py"):
                raise KeyboardInterrupt
        except ScriptFailed as error:
            failed.append(error)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    (told,) = map(str, failed)
    assert told.startswith("KeyboardInterrupt (in test_raising_scripts.py, line ")


def test_a_missing_module_is_told_by_the_line_that_wants_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not by one inside Python's own machinery of imports, which nobody can mend."""
    script = tmp_path / "loader.py"
    script.write_text("import os\nimport not_installed_anywhere\n")
    assert 2 == main([str(tiny.write_with_samples(tmp_path)), "--inputs", str(script)])
    assert "(ModuleNotFoundError in loader.py, line 2)" in capsys.readouterr().err
