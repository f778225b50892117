"""Where trials run, and what each may take."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from precision_bisect.settings.flags import Flag, flag
from precision_bisect.settings.reading import duration, mebibytes, parse_workers

Isolate: TypeAlias = Literal["auto", "always", "never"]
ForecastOn: TypeAlias = Literal["auto", "cpu", "cuda"]
RankBy: TypeAlias = Literal["emulator", "engine"]
MOST_THREADS = 4096
"""More than any machine has cores; ONNX Runtime would begin each of them."""
DEFAULT_EXECUTOR = "local"
DISK_CAP_MIB = 10 * 1024.0
_workers = partial(flag, "workers")
_output = partial(flag, "output")


def _plug_in(text: str) -> tuple[str, str | None]:
    """Return the name and the address of `NAME[=ADDRESS]`."""
    name, _, address = text.partition("=")
    return name, address or None


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Where trials run, and what each may take.

    `gpus` has one for each worker, as CUDA_VISIBLE_DEVICES names them; without it all share the
    first. The plug-in `executor` is reached at `executor_address`, in its own notation.
    """

    gpus: Sequence[str] = ()
    executor_address: str | None = None
    workers: int = _workers(
        1,
        "plans side by side, which share one GPU, or --threads; gpu:0,1,2,3: one on each of "
        "these GPUs ({})",
        metavar="N|gpu:0,1",
        read=parse_workers,
        fills=("workers", "gpus"),
        least=1,
        most=MOST_THREADS,
    )
    executor: str = _workers(
        DEFAULT_EXECUTOR,
        "the plug-in that evaluates trials, and where it is reached (local)",
        Flag(
            help="run trials on a Dask cluster, as tcp://scheduler:8786, or on `local` processes, "
            "to try; the same as --executor dask=ADDRESS",
            group="workers",
            name="--cluster",
            metavar="ADDRESS",
            read=lambda address: ("dask", address),
        ),
        metavar="NAME[=ADDRESS]",
        read=_plug_in,
        fills=("executor", "executor_address"),
    )
    mixed_gpus: bool = _workers(False, "let GPUs and libraries of different kinds judge one run")
    isolate: Isolate = _workers(
        "auto",
        "run trials in child processes, so that a crash is an outcome; auto: where they build"
        " or have a limit ({})",
    )
    forecast_on: ForecastOn = _workers(
        "auto",
        "what computes forecasts where engines judge; auto: the GPU for large models, with "
        "--backend onnxruntime ({})",
    )
    rank_by: RankBy = _workers(
        "emulator",
        "what ranks layers where engines judge; engine: errors of the tensors that it shows, "
        "by two to four more builds ({})",
    )
    trial_timeout_s: float | None = _workers(
        None,
        "kill a trial that takes longer: 90s, 15m, 2h",
        metavar="TIME",
        read=duration,
        positive=True,
    )
    trial_memory_mib: float | None = _workers(
        None,
        "kill a trial that takes more main memory: 8G, 512M",
        metavar="SIZE",
        read=mebibytes,
        positive=True,
    )
    threads: int = _workers(
        0,
        "at most N for ONNX Runtime; small layers get fewer; 0: 8 ({})",
        metavar="N",
        least=0,
        most=MOST_THREADS,
        brief="at most N for ONNX Runtime (8)",
    )
    keep_engines: bool = _output(False, "keep the engine of every trial in DIR/engines")
    disk_cap_mib: float = _output(
        DISK_CAP_MIB,
        "of kept engines, logs and caches; engines that failed go first, the accepted one "
        "never (10G)",
        metavar="SIZE",
        read=mebibytes,
        positive=True,
    )
