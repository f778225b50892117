"""The backend that reaches hosts, and a search over it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import tiny
from loopback import Boards
from precision_bisect.backends.backend_plugin import BackendTask, backend_plugin
from precision_bisect.graphs.load import Model
from precision_bisect.options import Options
from precision_bisect.protocols import Backend, Sample
from precision_bisect.runs.runfolder import RESULT
from precision_bisect.settings.engine_settings import EngineSettings


def backend(
    reached: Boards,
    model: Model,
    work: Path,
    samples: Sequence[Sample] = (),
    options: Mapping[str, str] | None = None,
    build_timeout_s: float | None = None,
) -> Backend:
    """Return the backend that reaches hosts."""
    engine = EngineSettings(
        backend_options=reached.options if options is None else options,
        build_timeout_s=build_timeout_s,
    )
    asked = Options(model=model.path, backend="remote", engine=engine)
    shapes = {
        spec.name: [tuple(n for n in spec.shape or () if isinstance(n, int))]
        for spec in model.inputs
    }
    task = BackendTask(options=asked, samples=samples, shapes=shapes, work=work)
    return backend_plugin("remote").make(task)(model)


def tiny_model(folder: Path) -> Path:
    (folder / "model").mkdir()
    return tiny.write_model(folder / "model" / "model.onnx")


def command(model: Path, reached: Boards, *more: str) -> list[str]:
    run = ["--out", str(model.parent / "run"), "--tol", "1e-2", "--copies", "0"]
    return [str(model), *run, *reached.flags(), *more]


def kept(model: Path) -> list[str]:
    found: list[str] = json.loads((model.parent / "run" / RESULT).read_text())["kept"]
    return sorted(found)
