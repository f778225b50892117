"""Whether a TensorRT library starts on this machine, asked in a process of its own.

A library that is newer than the driver, or incomplete, can fail when its first object is made, and
may take the process with it.
"""

import subprocess
import sys
from functools import cache

from precision_bisect.backends.tensorrt.flavour import FlavourName, load_flavour
from precision_bisect.backends.tensorrt.log import collected
from precision_bisect.errors import PrecisionBisectError, printable

_LIMIT_S = 180.0
"""Seconds; loading all libraries from a slow disk takes a minute. A bound."""
_ANSWER = "precision-bisect hears: "
"""What the answer follows: a library, or Python's own start, may print before it."""


@cache
def why_not_started(name: FlavourName) -> str:
    """Return in one line why the library makes no builder here, "" where it does."""
    # -P: modules in the folder that it is started in must not be imported.
    command = [sys.executable, "-P", "-m", __name__, name]
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{name} made no builder within {_LIMIT_S:g} s"
    except OSError as error:
        return f"no process could be started to try {name}: {error.strerror}"
    _, answered, answer = ended.stdout.rpartition(_ANSWER)
    if ended.returncode == 0 and answered:
        # Both: a process may die after its answer, or end well without one.
        return answer.split("\n", 1)[0].strip()
    last = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
    return printable(f"{name} made no builder: its process ended with {last}")


def _trouble(name: FlavourName) -> str:
    try:
        flavour = load_flavour(name)
        with collected(flavour):
            from polygraphy.backend.trt import get_trt_logger

            flavour.module.Builder(get_trt_logger())
            if flavour.can_run:
                flavour.module.Runtime(get_trt_logger())
    except PrecisionBisectError as error:
        return error.one_line()
    return ""


if __name__ == "__main__":
    said = _trouble("tensorrt" if sys.argv[1] == "tensorrt" else "tensorrt-rtx")
    sys.stdout.write(f"{_ANSWER}{said}\n")
