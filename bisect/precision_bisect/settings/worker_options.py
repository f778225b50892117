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
        "evaluate up to N plans side by side ({}). Emulated, they share --threads; builds share "
        "one GPU, which needs the memory for N of them at a time. gpu:0,1,2,3: one worker on each"
        " of these GPUs",
        metavar="N|gpu:0,1",
        read=parse_workers,
        fills=("workers", "gpus"),
        least=1,
        most=MOST_THREADS,
    )
    executor: str = _workers(
        DEFAULT_EXECUTOR,
        "what evaluates trials: an installed plug-in, and where it is reached (local: this "
        "machine)",
        Flag(
            help="run trials on the workers of a Dask cluster: tcp://scheduler:8786, once it has "
            "--workers N of them; local: one of N processes of this machine, to try it out. The "
            "same as --executor dask=ADDRESS",
            group="workers",
            name="--cluster",
            metavar="ADDRESS",
            read=lambda address: ("dask", address),
        ),
        metavar="NAME[=ADDRESS]",
        read=_plug_in,
        fills=("executor", "executor_address"),
    )
    mixed_gpus: bool = _workers(
        False, "let GPUs and libraries of different kinds judge the trials of one run"
    )
    isolate: Isolate = _workers(
        "auto",
        "run trials in child processes, so that a crash of one is an outcome; auto: where they "
        "are builds or have a limit ({})",
    )
    forecast_on: ForecastOn = _workers(
        "auto",
        "what computes the emulator's forecasts where other backends judge; auto: the GPU with "
        "--backend onnxruntime, where the model is large for the CPU and small for the GPU's "
        "memory ({})",
    )
    rank_by: RankBy = _workers(
        "emulator",
        "what ranks the layers where engines are built; engine: the errors of the tensors that "
        "the engine itself shows, with ONNX Runtime, TensorRT 10.12 and later, TensorRT-RTX and "
        "remote; it takes two to four more builds ({})",
    )
    trial_timeout_s: float | None = _workers(
        None,
        "kill a trial that takes longer, building and running, and end a run whose FP32 reference"
        " does: 90, 90s, 15m, 2h (no limit)",
        metavar="TIME",
        read=duration,
        positive=True,
    )
    trial_memory_mib: float | None = _workers(
        None,
        "kill a trial whose process takes more main memory: 8G, 512M (no limit)",
        metavar="SIZE",
        read=mebibytes,
        positive=True,
    )
    threads: int = _workers(
        0,
        "of ONNX Runtime; 0: what the layers are large enough for, at most 8 and the cores that "
        "this process may use ({})",
        metavar="N",
        least=0,
        most=MOST_THREADS,
        brief="of ONNX Runtime (as many as help, at most 8)",
    )
    keep_engines: bool = _output(
        False, "keep the engine of every trial in DIR/engines, not only the accepted one"
    )
    disk_cap_mib: float = _output(
        DISK_CAP_MIB,
        "what kept engines, logs and caches may take; engines that failed go first, the oldest "
        "before others, the accepted one never (10G)",
        metavar="SIZE",
        read=mebibytes,
        positive=True,
    )
