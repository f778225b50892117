"""ModelOpt AutoCast in an environment of its own, for tests and benchmarks.

    python benchmarks/autocast_env.py

makes `.cache/autocast-VERSION`, 1.3 GB, where it is not there yet. Packages are pinned, and their
own requirements left out: those of ModelOpt take the libraries of CUDA. It imports torch; what is
computed here, it computes without.
"""

import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

VERSION = "0.47.0"
PACKAGES = (
    *(f"nvidia-modelopt=={VERSION}", "onnx==1.21.0", "onnxruntime==1.24.4", "torch==2.13.0"),
    *("onnx-graphsurgeon==0.6.1", "onnx-ir==1.1.0", "onnxscript==0.7.2", "onnxslim==0.1.98"),
    *("flatbuffers==25.12.19", "lief==1.0.0", "ml_dtypes==0.6.0", "mpmath==1.4.1"),
    *("numpy==2.4.6", "nvidia-ml-py==13.615.71", "packaging==26.4", "polygraphy==0.53.6"),
    *("protobuf==7.36.2", "sympy==1.14.0", "tqdm==4.70.1", "typing_extensions==4.16.0"),
)
HERE = Path(__file__).resolve().parents[1] / ".cache" / f"autocast-{VERSION}"
MADE = "made.txt"
"""In an environment that is complete: its packages."""

CONVERT = """
import json, sys, traceback
from modelopt.onnx.autocast.__main__ import main

failed = []
for job in json.load(sys.stdin):
    try:
        main(job)
        failed.append("")
    except BaseException as error:
        traceback.print_exc()
        failed.append(f"{type(error).__name__}: {error}")
print(json.dumps(failed))
"""
"""AutoCast's own command line, once per job: the imports take longer than a job."""


def python() -> Path | None:
    """Return the environment's Python; None where there is no complete environment."""
    made = HERE / MADE
    complete = made.is_file() and made.read_text() == "\n".join(PACKAGES)
    return HERE / "bin" / "python" if complete else None


def make() -> None:
    """Make the environment anew. Raises CalledProcessError where pip cannot."""
    shutil.rmtree(HERE, ignore_errors=True)
    venv.create(HERE, with_pip=True)
    pip = [str(HERE / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, *PACKAGES], check=True)
    (HERE / MADE).write_text("\n".join(PACKAGES))


def arguments(model: Path, out: Path, patterns: Sequence[str], low: str = "fp16") -> list[str]:
    """Return what `docs/exports.md` says to give AutoCast for a model and a list."""
    return [
        *("--onnx_path", str(model), "--output_path", str(out), "--low_precision_type", low),
        *("--keep_io_types", "--data_max", "inf", "--init_max", "inf"),
        *("--log_level", "ERROR", "--nodes_to_exclude", *patterns),
    ]


def convert(jobs: Sequence[Sequence[str]]) -> list[str]:
    """Run AutoCast on each list of arguments; return for each why it failed, "" where it did not.

    Raises RuntimeError where AutoCast does not start.
    """
    ran = subprocess.run(
        [str(python()), "-c", CONVERT],
        input=json.dumps([list(job) for job in jobs]),
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        raise RuntimeError(ran.stderr[-2000:])
    found: list[str] = json.loads(ran.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    if python() is None:
        make()
    print(f"{sys.executable} can use {python()}")
