"""A machine with a shell and trtexec alone: tools for it, and its run of a folder's script."""

import subprocess
import sys
from pathlib import Path

from exports_models import words
from precision_bisect.pipeline.on_target.target_folder import SCRIPT

TESTS = Path(__file__).parent


def tool(folder: Path, begins: str = "") -> Path:
    """Write a trtexec that works without any variable of ours; return its folder."""
    folder.mkdir(parents=True)
    path = ":".join([str(TESTS), *filter(None, sys.path)])
    script = folder / "trtexec"
    script.write_text(
        f"#!/bin/sh\n{begins}\nPYTHONPATH='{path}' exec {sys.executable} "
        f'{TESTS / "fake_trtexec.py"} "$@"\n'
    )
    script.chmod(0o755)
    return folder


def shell_tool(folder: Path, begins: str = "") -> Path:
    """Write a trtexec that only writes its arguments into whatever it is to write."""
    folder.mkdir(parents=True)
    script = folder / "trtexec"
    script.write_text(f"#!/bin/sh\n{begins}\n{_WRITES}")
    script.chmod(0o755)
    return folder


_WRITES = """\
case $* in *--help) echo '[TensorRT v101300] --stronglyTyped'; exit;; esac
for word do
    case $word in --save*=* | --export*=*) printf '%s\\n' "$@" > "${word#*=}";; esac
done
"""


def judge(folder: Path, tools: Path, shell: str = "sh") -> "subprocess.CompletedProcess[str]":
    """Run the script as on a machine that has a shell and trtexec, from another folder."""
    path = f"PATH={tools}:/usr/bin:/bin"
    called = ["env", "-i", path, *words(shell), str(folder / SCRIPT)]
    return subprocess.run(called, cwd="/", capture_output=True, text=True, check=False)
