"""TensorRT and TensorRT-RTX as backends."""

import subprocess
import sys
from dataclasses import replace
from functools import cache

from precision_bisect.backends.backend_plugin import (
    Availability,
    BackendTask,
    Builder,
    MakeBackend,
)
from precision_bisect.backends.tensorrt.flavour import (
    FP8_CAPABILITY,
    Flavour,
    FlavourName,
    absent,
    load_flavour,
)
from precision_bisect.backends.tensorrt.log import collected
from precision_bisect.errors import PluginError, PrecisionBisectError
from precision_bisect.machine.process_ends import how_ended, tell_faults
from precision_bisect.precisions import LowName
from precision_bisect.settings.engine_settings import EngineSettings

DEFAULT_CAPABILITY = "8.6"
"""Compute capability to build for if no GPU can run the engine and none was asked for."""
# Seconds; loading all libraries from a slow disk takes a minute. A bound.
_LIMIT_S = 180.0
# What the answer follows: a library, or Python's own start, may print before it.
_ANSWER = "precision-bisect hears: "


@cache
def why_not_started(name: FlavourName) -> str:
    """Return in one line why the library makes no builder here, "" where it does.

    A library that is newer than the driver, or incomplete, can fail when its first object is made,
    and may take the process with it. So it is asked in a process of its own.
    """
    # -P: modules in the folder that it is started in must not be imported.
    command = [sys.executable, "-P", "-m", __name__, name]
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{name} made no builder within {_LIMIT_S:g} s"
    except OSError as error:
        return f"no process could be started to try {name}: {error.strerror}"
    _, answered, answer = ended.stdout.decode(errors="replace").rpartition(_ANSWER)
    if ended.returncode == 0 and answered:
        # Both: a process may die after its answer, or end well without one.
        return answer.split("\n", 1)[0].strip()
    return f"{name} made no builder: its process {how_ended(ended.returncode, ended.stderr)}"


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


class TensorRTPlugin:
    """One of the two libraries; see `BackendPlugin`."""

    def __init__(self, name: FlavourName) -> None:
        self._name: FlavourName = name

    def availability(self) -> Availability:
        """Return whether this machine's GPU can run its engines, or it can at least build them."""
        name = self._name
        try:
            flavour = load_flavour(name)
        except PluginError as error:
            why = error.message if absent(name) else error.one_line()
            return Availability(name=name, usable=False, why=why)
        # It loads, and may yet fail or crash with its first object: ask in another process.
        if flavour.can_run and (trouble := why_not_started(name)):
            return Availability(name=name, usable=False, why=trouble)
        why = f"{flavour.version} on {flavour.device}" if flavour.can_run else flavour.why_not
        return Availability(
            name=name,
            usable=flavour.can_run,
            why=why,
            builds=flavour.can_run or bool(flavour.targets),
        )

    def make(self, task: BackendTask) -> MakeBackend:
        """Return what makes the backend of a model."""
        from precision_bisect.backends.tensorrt.tensorrt_backend import TensorRTBackend

        flavour = load_flavour(self._name)
        return lambda model: TensorRTBackend(
            task.writer(model), task.options.engine, flavour, task.shapes_for(model), task.work
        )

    def builder(self, settings: EngineSettings, low: LowName) -> Builder:
        """Return what builds engines, for this machine's GPU or without it."""
        try:
            flavour = load_flavour(self._name)
        except PluginError as error:
            if not absent(self._name):
                raise
            raise PluginError(
                f"{self._name} is not installed, so no engine can be built",
                "pip install tensorrt_rtx, which builds without a GPU, too",
            ) from error
        settings, remark = _target(flavour, settings, low)
        return Builder(
            name=flavour.name,
            remark=remark,
            settings=settings,
            listening=lambda: collected(flavour),
        )


def _target(
    flavour: Flavour, settings: EngineSettings, low: LowName
) -> tuple[EngineSettings, str]:
    """Return the settings with the compute capability to build for, and a sentence on it."""
    assumed = settings.compute_capability is None and flavour.targets and not flavour.can_run
    if assumed:
        default = FP8_CAPABILITY if low == "fp8" else DEFAULT_CAPABILITY
        settings = replace(settings, compute_capability=default)
    target = settings.compute_capability
    remark = f"{flavour.version}, "
    remark += f"built for compute capability {target}" if target else f"built for {flavour.device}"
    remark += ", which --compute-capability changes" if assumed else ""
    if not flavour.can_run:
        remark += f"; it cannot run here: {flavour.why_not}"
    return settings, remark


TENSORRT = TensorRTPlugin("tensorrt")
TENSORRT_RTX = TensorRTPlugin("tensorrt-rtx")


if __name__ == "__main__":
    tell_faults()
    trouble = _trouble("tensorrt" if sys.argv[1] == "tensorrt" else "tensorrt-rtx")
    sys.stdout.write(f"{_ANSWER}{trouble}\n")
