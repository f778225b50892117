"""The command at the end: called once with the result's path, and never in the way."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from patience import PATIENCE_S, gone, wait_until
from precision_bisect.commandline.main import main
from precision_bisect.errors import UsageError
from precision_bisect.runs.monitoring.on_finish import call, command_words


def asked(folder: Path, *more: str) -> list[str]:
    """Return the arguments that search the small model in a folder."""
    model = tiny.write_with_samples(folder)
    inputs = ["--backend", "emulated", "--tol", "1e-2", "--inputs", folder / "inputs.npz"]
    return [str(part) for part in (model, *inputs, "--out", folder / "my run", *more)]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Return a script that notes what it is given, and the result's status, and then fails."""
    path = tmp_path / "note it.py"
    path.write_text(
        "import json, pathlib, sys\n"
        "status = json.loads(pathlib.Path(sys.argv[-1]).read_text())['status']\n"
        "noted = json.dumps([sys.argv[1:], status])\n"
        "pathlib.Path(__file__).with_name('noted').write_text(noted)\n"
        "print('said by the command')\n"
        "sys.exit(3)\n"
    )
    return path


@pytest.mark.parametrize(
    ("more", "code", "status"), [((), 0, "found"), (("--max-trials", "4"), 3, "budget_exhausted")]
)
def test_it_is_called_with_the_result_however_the_run_ends(
    tmp_path: Path,
    script: Path,
    more: tuple[str, ...],
    code: int,
    status: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """No shell changes its words, the result comes last; the run decides the exit code."""
    command = f"{sys.executable} '{script}' '$HOME; \"x\"'"
    assert code == main(asked(tmp_path, "--json", "--on-finish", command, *more))
    told = capfd.readouterr()
    result = tmp_path / "my run" / "result.json"
    assert [['$HOME; "x"', str(result)], status] == json.loads((tmp_path / "noted").read_text())
    assert status == json.loads(told.out)["status"]
    said = [line for line in told.err.splitlines() if "command" in line or "on-finish" in line]
    how = "its process ended with exit code 3"
    failed = f"precision-bisect: warning: --on-finish {sys.executable}: {how}"
    assert ["said by the command", failed] == said


def test_it_is_called_though_nobody_can_be_told(tmp_path: Path, script: Path) -> None:
    """Where standard output is on a full device the command is called all the same."""
    command = f"{sys.executable} '{script}'"
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "precision_bisect", *asked(tmp_path, "--on-finish", command)],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert 2 == ran.returncode
    assert "cannot write the output" in ran.stderr
    assert "found" == json.loads((tmp_path / "noted").read_text())[1]


@pytest.mark.parametrize("command", ["", "   ", "notify 'open", "''"])
def test_what_is_no_command_is_refused_at_the_start(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong quotes, or nothing to call, is one line before anything begins."""
    assert 2 == main(asked(tmp_path, "--on-finish", command))
    (said,) = capsys.readouterr().err.splitlines()
    assert "--on-finish" in said
    assert not (tmp_path / "my run").exists()


def test_a_run_that_never_began_calls_nothing(tmp_path: Path, script: Path) -> None:
    """Without a result there is nothing to pass."""
    command = f"{sys.executable} '{script}'"
    assert 2 == main(asked(tmp_path, "--on-finish", command, "--strategy", "none"))
    assert not (tmp_path / "noted").exists()


def test_what_cannot_be_run_is_told() -> None:
    """A command that is not there or is no program is one line, and no error."""
    result = Path("result.json")
    trouble = call(("no-such-command",), result)
    assert "--on-finish no-such-command cannot be run: No such file or directory" == trouble
    assert "Permission denied" in str(call(("/etc/passwd",), result))
    assert "SIGKILL" in str(call(("sh", "-c", "kill -9 $$"), result))
    assert call(("true",), result) is None


def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    """After the limit the command and its children are gone."""
    noted = tmp_path / "pid"
    noted.touch()
    for limit_s in (0.5, 10.0, PATIENCE_S):
        script = f"sleep 600 & echo $! > {noted}; wait"
        trouble = call(("sh", "-c", script), Path("r"), timeout_s=limit_s)
        assert f"--on-finish sh was ended after {limit_s:g} s" == trouble
        if child := noted.read_text():
            break
    wait_until(lambda: gone(int(child)))


def test_words_are_those_of_a_shell() -> None:
    """Quotes group words and nothing is expanded."""
    assert ("mail", "-s", "it is done", "$USER") == command_words("mail -s 'it is done' $USER")
    with pytest.raises(UsageError, match="no closing quotation"):
        command_words('mail "x')
