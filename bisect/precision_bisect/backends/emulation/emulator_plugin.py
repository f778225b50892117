"""The emulator as a backend."""

from dataclasses import replace

from precision_bisect.backends.backend_plugin import (
    Availability,
    BackendTask,
    Builder,
    MakeBackend,
)
from precision_bisect.backends.forecasting import choose_target, forecaster
from precision_bisect.errors import RefusedError
from precision_bisect.judging.inputs.copies import can_change
from precision_bisect.precisions import LowName
from precision_bisect.settings.engine_settings import EngineSettings


class EmulatorPlugin:
    """See `BackendPlugin`."""

    def availability(self) -> Availability:
        """Return that it works."""
        return Availability(name="emulated", usable=True, why="predicts on any machine")

    def make(self, task: BackendTask) -> MakeBackend:
        """Return what makes the emulator of a model."""
        options = choose_target(replace(task.options, backend="emulated"))
        # Copies are made inside if no sample has a float input to change.
        factors = options.copies > 0 and not can_change(task.samples)
        return lambda model: forecaster(model, options, task.scales, factors=factors)

    def builder(self, settings: EngineSettings, low: LowName) -> Builder:
        """Raise RefusedError: it builds nothing to look into."""
        raise RefusedError("the emulator builds no engine", "name another --backend")


EMULATOR = EmulatorPlugin()
