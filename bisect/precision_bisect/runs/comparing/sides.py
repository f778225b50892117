"""One run as a comparison sees it, read from its folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_bisect.runs.results.model_layers import read_modules
from precision_bisect.runs.results.saved import Saved, read_saved


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A run's answer, and the modules of its model's layers by name, None if not known."""

    saved: Saved
    layers: Mapping[str, str] | None

    @property
    def precisions(self) -> Mapping[str, str]:
        """The type of each kept layer, in network order."""
        result = self.saved.result
        chosen = {
            name: rung.precision
            for rung in result.rungs
            if rung.layers is not None
            for name in rung.layers
        }
        return {name: chosen.get(name, result.high) for name in result.kept}

    @property
    def causes(self) -> Mapping[str, str]:
        """Why each kept layer needs the precision, as far as the run has found it out."""
        return {each.layer: each.cause for each in self.saved.result.diagnosis}

    def to_json(self) -> dict[str, Any]:
        """Return the figures of the run."""
        result = self.saved.result
        latency = result.latency_ms
        return {
            "path": str(self.saved.path),
            "model": str(self.saved.model),
            "answered": self.saved.answered,
            **{key: getattr(result, key) for key in _FIGURES},
            "latency_ms": None if latency is None else latency.get("kept"),
            "minimal": result.certificate.minimal,
            "minimal_by_forecasts": result.certificate.minimal_by_forecasts,
            "kept": len(result.kept),
        }


_FIGURES = (
    *("status", "backend", "low", "high", "error", "tolerance", "candidates"),
    *("trials", "builds", "wall_s"),
)


def read_side(path: Path) -> Side:
    """Read a run folder, or the `result.json` in one. Raises RunFolderError."""
    saved = read_saved(path)
    return Side(saved=saved, layers=read_modules(saved.path.parent))
