"""One run as a comparison sees it, read from its folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_bisect.results.model_layers import ModelLayers
from precision_bisect.results.saved import Saved, read_saved
from precision_bisect.run_folder.runfolder import LAYERS
from precision_bisect.run_folder.typed_json import read_typed


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A run's answer, and the names of all layers of its model, None where they are not known."""

    saved: Saved
    layers: frozenset[str] | None

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
    return Side(saved=saved, layers=_names(saved.path.with_name(LAYERS)))


def _names(path: Path) -> frozenset[str] | None:
    """Return what `layers.json` lists; None where there is none that can be read."""
    try:
        listed = read_typed(ModelLayers, path)
    except (OSError, ValueError):
        return None
    return frozenset(each.name for each in listed.layers)
