"""An answer as whole modules, as PyTorch can be told: a part of `result.json`."""

from collections.abc import Sequence
from dataclasses import dataclass

from precision_bisect.errors import counted, printable
from precision_bisect.runs.typed_json import Count
from precision_bisect.trial import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleAnswer:
    """Modules that hold the tolerance with all of their layers kept, as a trial has shown.

    `names` are PyTorch's qualified ones. They hold the layers that were asked for, too, and those
    that cannot run low; `layers` counts the others. `error` is on the tolerance's scale. `minimal`
    tells that each module without such layers was tried to be dropped, and none can.
    """

    names: Sequence[str]
    layers: Count
    error: Figure | None
    minimal: bool

    @property
    def words(self) -> str:
        """The modules in one line: the first of them, what they hold, and the error."""
        more = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
        error = "they hold" if self.error is None else f"error {self.error:.4g}"
        # Files of earlier versions may name none.
        first = printable(next(iter(self.names), "none"))
        return f"{first}{more}, whole: {error}, {counted(self.layers, 'layer')}"
