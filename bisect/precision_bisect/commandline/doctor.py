"""`precision-bisect doctor`: what is installed, what works, and what to install for more."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version

from precision_bisect.backends.backend_plugin import Availability, availabilities
from precision_bisect.backends.tensorrt.flavour import NAMES, absent, distributions, suited
from precision_bisect.backends.tensorrt.tensorrt_plugin import why_not_started
from precision_bisect.machine.gpu import cuda_version, devices, driver_version

PACKAGES = (
    "precision-bisect",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "polygraphy",
    "numpy",
    "tensorrt",
    "tensorrt_rtx",
)
"""Distributions that matter to a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What was found. `packages` maps a distribution to its version, None where it is missing."""

    python: str
    machine: str
    packages: dict[str, str | None]
    driver: str | None
    cuda: str | None
    gpus: Sequence[str]
    backends: Sequence[Availability]
    advice: Sequence[str]

    @property
    def taken(self) -> str:
        """The backend that `--backend auto` takes here."""
        return next(entry.name for entry in self.backends if entry.usable)

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "auto": self.taken}, indent=2) + "\n"

    def to_text(self) -> str:
        lines = [f"Python {self.python}, {self.machine}", "", "Installed:"]
        width = max(map(len, self.packages))
        lines += [
            f"  {name:<{width}} {found or 'missing'}" for name, found in self.packages.items()
        ]
        lines += ["", "GPU:"]
        lines += [f"  {gpu}" for gpu in self.gpus] or ["  none that a driver shows"]
        if self.driver or self.cuda:
            lines.append(f"  driver {self.driver}, CUDA {self.cuda}")
        lines += ["", "Backends:"]
        for entry in self.backends:
            lines.append(f"  {entry.name:<13} {_state(entry)}: {entry.why}")
        lines += ["", f"--backend auto takes {self.taken} here."]
        if self.advice:
            lines += ["", "For more:", *(f"  {line}" for line in self.advice)]
        return "\n".join(lines) + "\n"


def examine() -> Examination:
    """Look at this machine. Never raises for what is missing or broken."""
    packages: dict[str, str | None] = {name: _version(name) for name in PACKAGES}
    for library in NAMES:
        packages |= distributions(library)
    gpus = [
        f"{gpu.name}, compute capability {gpu.compute_capability}, {gpu.memory_mib} MiB"
        for gpu in devices()
    ]
    return Examination(
        python=platform.python_version(),
        machine=f"{platform.system()} {platform.machine()}",
        packages=packages,
        driver=driver_version(),
        cuda=cuda_version(),
        gpus=gpus,
        backends=[_tried(entry) for entry in availabilities()],
        advice=_advice(packages, bool(gpus)),
    )


def _tried(entry: Availability) -> Availability:
    """Return the entry, or why a library that should build makes no builder."""
    for name in NAMES:
        if name == entry.name and entry.builds and (trouble := why_not_started(name)):
            return replace(entry, usable=False, builds=False, why=trouble)
    return entry


def _state(entry: Availability) -> str:
    if entry.usable:
        return "works"
    return "builds and verifies, cannot run" if entry.builds else "cannot run"


def _advice(packages: dict[str, str | None], gpu: bool) -> list[str]:
    """Return one line for each thing that could be installed or should be removed."""
    advice = []
    if packages["onnxruntime"] and packages["onnxruntime-gpu"]:
        advice.append(
            "onnxruntime and onnxruntime-gpu overwrite each other: pip uninstall both, then "
            "install one"
        )
    if not packages["onnxruntime"] and not packages["onnxruntime-gpu"]:
        advice.append("the FP32 reference: pip install onnxruntime (or onnxruntime-gpu)")
    there = "" if gpu else "on a machine with a GPU, "
    if absent("tensorrt"):
        advice.append(f"TensorRT engines: {there}pip install {suited('tensorrt')}")
    if not packages["onnxruntime-gpu"]:
        advice.append(
            f"ONNX Runtime on CUDA: {there}pip uninstall onnxruntime, then pip install "
            "onnxruntime-gpu"
        )
    if absent("tensorrt-rtx"):
        advice.append(
            "TensorRT-RTX, which builds and verifies without a GPU, too: pip install "
            f"{suited('tensorrt-rtx')}"
        )
    return advice


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
