"""Whether the workers of a run are alike: verdicts of unlike GPUs or libraries cannot be compared.

The GPUs of this machine are asked each in a process of its own, since what CUDA shows of them is
decided once for a process.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from precision_bisect.errors import UsageError

_ASK = (
    "from precision_bisect.machine.gpu import devices;"
    "print(*(gpu.name for gpu in devices()), sep='|')"
)

Said: TypeAlias = Mapping[str, Mapping[str, str]]
"""What each worker says of itself: versions and device names, by its own name."""


def require_alike(facts_by_worker: Said) -> None:
    """Raise UsageError, naming what differs and where, unless all workers say the same."""
    if trouble := unlike_workers(facts_by_worker):
        raise UsageError(
            f"the workers are not alike, so their verdicts cannot be compared: {trouble}",
            "use workers of one kind, or --mixed-gpus",
        )


def unlike_workers(facts_by_worker: Said) -> str:
    """Return in what respects the workers differ, and which says what; "" where in none."""
    texts = []
    for what in sorted({what for words in facts_by_worker.values() for what in words}):
        groups: dict[str, list[str]] = {}
        for worker, words in facts_by_worker.items():
            groups.setdefault(words.get(what, "none"), []).append(worker)
        if len(groups) > 1:
            parts = (f"{value} on {', '.join(workers)}" for value, workers in groups.items())
            texts.append(f"{what} is {' and '.join(parts)}")
    return "; ".join(texts)


def merged(facts_by_worker: Said) -> Mapping[str, str]:
    """Return what workers say together; where they differ every value, in order, once."""
    names = {what: None for words in facts_by_worker.values() for what in words}
    return {
        what: " and ".join(
            sorted({words[what] for words in facts_by_worker.values() if what in words})
        )
        for what in names
    }


def gpu_names(gpus: Sequence[str]) -> Said:
    """Return the name of each GPU, which is as CUDA_VISIBLE_DEVICES names it; "none" for none."""
    return {f"GPU {gpu}": {"device": _name(gpu)} for gpu in gpus}


def require_alike_gpus(
    gpus: Sequence[str], named: Callable[[Sequence[str]], Said] = gpu_names
) -> None:
    """Raise UsageError unless these GPUs of this machine, as `named` names them, are of one kind.

    What has no name is left to whoever uses it.
    """
    if len(set(gpus)) > 1:
        require_alike(named(gpus))


def _name(gpu: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", _ASK],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    return process.stdout.partition("|")[0].strip() or "none"
