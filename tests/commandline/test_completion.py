"""A real bash completes commands, flags, choices, strategies and files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
SCRIPT = """\
eval "$(register-python-argcomplete precision-bisect)"
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9 COMP_KEY=9
read -ra COMP_WORDS <<<"$1"
_python_argcomplete precision-bisect
printf '%s\\n' "${COMPREPLY[@]}"
"""
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


def completed(typed: str, folder: Path) -> set[str]:
    """Return what bash offers for what was typed after the program's name."""
    ran = subprocess.run(
        ["bash", "-c", SCRIPT, "bash", f"precision-bisect {typed}"],
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "" == ran.stderr
    return {line.strip() for line in ran.stdout.splitlines() if line.strip()}


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("--str", {"--strategy"}),
        ("sh", {"show", "share.onnx"}),
        ("share.onnx --metric c", {"cosine"}),
        ("share.onnx --strategy pr", {"prefix", "probdd"}),
        ("run share.onnx --max-k", {"--max-kept"}),
        ("share.onnx sh", set()),
        ("--seed 1 sh", {"share.onnx"}),
        ("compare --j", {"--json"}),
        ("compare --str", set()),
        ("verify --backend tensorrt-", {"tensorrt-rtx"}),
        ("layers sh", {"share.onnx"}),
    ],
)
def test_bash_offers(typed: str, offered: set[str], tmp_path: Path) -> None:
    """Each command has its own flags; commands are offered for the first word only."""
    (tmp_path / "share.onnx").touch()
    assert offered == completed(typed, tmp_path)
