"""Which backend builds or runs plans: the one asked for, or the most real one that can."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from precision_bisect.backends.backend_plugin import (
    Availability,
    BackendPlugin,
    BackendTask,
    Builder,
    MakeBackend,
)
from precision_bisect.errors import PluginError, RefusedError
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.options import Options
from precision_bisect.plugins import BACKENDS, installed, load
from precision_bisect.precisions import LowName
from precision_bisect.protocols import Sample
from precision_bisect.settings.engine_settings import EngineSettings

AUTO = ("tensorrt", "tensorrt-rtx", "onnxruntime", "emulated")
"""The backends that `auto` tries, in this order; any other has to be named."""
_LIBRARIES = ("tensorrt", "tensorrt-rtx")
NO_SCALES = Scales()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A backend that was chosen, how to make it for a model, and why it is the one."""

    name: str
    make: MakeBackend
    why: str


def availabilities() -> list[Availability]:
    """Return every backend in the order in which `auto` takes them, then the others.

    A TensorRT library counts as usable only where this machine's GPU can run its engines.
    """
    others = [name for name in installed(BACKENDS) if name not in AUTO]
    return [_availability(name) for name in (*AUTO, *others)]


def choose_backend(
    options: Options,
    samples: Sequence[Sample],
    work: Path,
    *,
    scales: Scales = NO_SCALES,
    timed: bool = False,
) -> Chosen:
    """Return the backend that the options ask for; `work` is an empty folder for its files.

    `scales` and `timed` are as in `BackendTask`. Raises as `pick_backend` does.
    """
    name, why = pick_backend(options)
    task = BackendTask(options=options, samples=samples, work=work, scales=scales, timed=timed)
    return Chosen(name=name, make=backend_plugin(name).make(task), why=why)


def pick_backend(options: Options) -> tuple[str, str]:
    """Return the name of the backend that the options ask for, and why it is the one.

    With a target, `auto` takes that one's own backend or the emulator. Raises PluginError
    for an unknown name, and RefusedError when it was asked for by name and cannot run here, with
    the reason.
    """
    if options.backend == "auto":
        suited = [name for name in AUTO if options.target in ("auto", name) or name == AUTO[-1]]
        found = [_availability(name) for name in suited]
        # The emulator is last and always usable.
        taken = next(entry for entry in found if entry.usable)
        passed_over = found[: found.index(taken)]
        return taken.name, "; ".join(f"{entry.name}: {entry.why}" for entry in passed_over)
    named = backend_plugin(options.backend).availability()
    if not named.usable:
        raise RefusedError(
            f"--backend {named.name} cannot run plans here: {named.why}",
            "`precision-bisect doctor` says what can"
            + ("; `verify` builds without running" if named.builds else ""),
        )
    return named.name, ""


def choose_builder(name: str, settings: EngineSettings, low: LowName = "fp16") -> Builder:
    """Return how engines with `low` are built here; `auto` takes the first TensorRT that can.

    Raises PluginError where it is not installed, RefusedError where ONNX Runtime has no GPU.
    """
    if name != "auto":
        return backend_plugin(name).builder(settings, low)
    # Sorting is stable: of two that can build, or cannot, the first named comes first.
    for each in sorted(_LIBRARIES, key=lambda each: not _availability(each).builds):
        try:
            return backend_plugin(each).builder(settings, low)
        except PluginError:
            continue
    raise PluginError(
        "neither TensorRT nor TensorRT-RTX is installed, so no engine can be built",
        "pip install tensorrt_rtx, which builds without a GPU, too",
    )


def backend_plugin(name: str) -> BackendPlugin:
    """Return a backend's plug-in. Raises PluginError."""
    return cast("BackendPlugin", load(BACKENDS, name))


def _availability(name: str) -> Availability:
    try:
        return backend_plugin(name).availability()
    except PluginError as error:
        return Availability(name=name, usable=False, why=error.one_line())
