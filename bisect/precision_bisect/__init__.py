"""Find the smallest set of layers that must stay in FP32.

    import precision_bisect

    result = precision_bisect.find("model.onnx", tol=1e-2, inputs="inputs/")
    print(result.status, result.kept)

Importing this package loads neither numpy nor ONNX Runtime; they come with the first call.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precision_bisect.api import FindOptions, find, layers, load
    from precision_bisect.errors import ExitCode, PrecisionBisectError, SearchInterrupted
    from precision_bisect.layer_table import Layer
    from precision_bisect.runs.results.certificates import Certificate
    from precision_bisect.runs.results.result import Diagnosis, Result
    from precision_bisect.settings.engine_settings import EngineSettings

__all__ = [
    "Certificate",
    "Diagnosis",
    "EngineSettings",
    "ExitCode",
    "FindOptions",
    "Layer",
    "PrecisionBisectError",
    "Result",
    "SearchInterrupted",
    "find",
    "layers",
    "load",
]

_HOMES = {
    "Certificate": "precision_bisect.runs.results.certificates",
    "Diagnosis": "precision_bisect.runs.results.result",
    "EngineSettings": "precision_bisect.settings.engine_settings",
    "ExitCode": "precision_bisect.errors",
    "FindOptions": "precision_bisect.api",
    "Layer": "precision_bisect.layer_table",
    "PrecisionBisectError": "precision_bisect.errors",
    "Result": "precision_bisect.runs.results.result",
    "SearchInterrupted": "precision_bisect.errors",
    "find": "precision_bisect.api",
    "layers": "precision_bisect.api",
    "load": "precision_bisect.api",
}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("precision-bisect")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
