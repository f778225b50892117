"""The arguments that say where trials run, and what each may take."""

import argparse
import re

from precision_bisect.errors import UsageError
from precision_bisect.options import DEFAULT_EXECUTOR, FORECAST_ON, ISOLATE

_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([MG])i?B?", re.IGNORECASE)
_GPU = re.compile(r"\d+|(?:GPU|MIG)-[0-9A-Za-z/-]+")
_GPUS = "gpu:"


def add_isolation_arguments(group: argparse._ArgumentGroup) -> None:
    """Add where trials run, and what limits each."""
    group.add_argument(
        "--executor",
        default=DEFAULT_EXECUTOR,
        metavar="NAME[=ADDRESS]",
        help="what evaluates trials: an installed plug-in, and where it is reached "
        f"({DEFAULT_EXECUTOR}: this machine)",
    )
    group.add_argument(
        "--cluster",
        dest="executor",
        type="dask={}".format,
        metavar="ADDRESS",
        help="run trials on the workers of a Dask cluster: tcp://scheduler:8786, once it has "
        "--workers N of them; local: one of N processes of this machine, to try it out. The same "
        "as --executor dask=ADDRESS",
    )
    group.add_argument(
        "--mixed-gpus",
        action="store_true",
        help="let GPUs and libraries of different kinds judge the trials of one run",
    )
    group.add_argument(
        "--isolate",
        choices=ISOLATE,
        default="auto",
        help="run trials in child processes, so that a crash of one is an outcome; auto: where "
        "they are builds or have a limit (auto)",
    )
    group.add_argument(
        "--forecast-on",
        choices=FORECAST_ON,
        default="auto",
        help="what computes the emulator's forecasts where other backends judge; auto: the GPU "
        "with --backend onnxruntime, where the model is large for the CPU and small for the GPU's "
        "memory (auto)",
    )
    group.add_argument(
        "--trial-timeout",
        metavar="TIME",
        help="kill a trial that takes longer, building and running, and end a run whose FP32 "
        "reference does: 90, 90s, 15m, 2h (no limit)",
    )
    group.add_argument(
        "--trial-memory",
        metavar="SIZE",
        help="kill a trial whose process takes more main memory: 8G, 512M (no limit)",
    )


def parse_workers(text: str) -> tuple[int, tuple[str, ...]]:
    """Return the number of workers and the GPU of each, none where they share one.

    Raises UsageError for what is neither a number nor `gpu:` and a list.
    """
    if text.startswith(_GPUS):
        gpus = tuple(gpu.strip() for gpu in text[len(_GPUS) :].split(","))
        if all(_GPU.fullmatch(gpu) for gpu in gpus):
            return len(gpus), gpus
    elif re.fullmatch(r"-?\d+", text):
        return int(text), ()
    raise UsageError(
        f"--workers {text} is no number of workers", "write --workers 4, or --workers gpu:0,1,2,3"
    )


def mebibytes(text: str) -> float:
    """Return a size as MiB. Raises UsageError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} is no size", "write it as 8G or 512M")
    return float(found[1]) * (1024 if found[2] in "gG" else 1)
