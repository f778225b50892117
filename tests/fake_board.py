"""A machine with a shell and trtexec alone: tools for it, and its run of a folder's script."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from exports_models import words
from precision_bisect.commandline.main import main
from precision_bisect.pipeline.on_target.target_script import SCRIPT

TESTS = Path(__file__).parent


def searched(folder: Path, model: Path, *samples: dict[str, Any], tolerance: float = 1e-2) -> Path:
    """Search a model with these samples; return the run."""
    (folder / "inputs").mkdir()
    for number, sample in enumerate(samples):
        np.savez(folder / f"inputs/{number}.npz", **sample)
    flags = ["--inputs", str(folder / "inputs"), "--backend", "emulated"]
    main([str(model), *flags, "--tol", str(tolerance), "--out", str(folder / "run")])
    return folder / "run"


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


def judge(
    folder: Path, tools: Path, shell: str = "sh", version: str = "10.13.0"
) -> "subprocess.CompletedProcess[str]":
    """Run the script as on a machine that has a shell and trtexec, from another folder."""
    settings = [f"PATH={tools}:/usr/bin:/bin", f"TENSORRT={version}"]
    called = ["env", "-i", *settings, *words(shell), str(folder / SCRIPT)]
    return subprocess.run(called, cwd="/", capture_output=True, text=True, check=False)
