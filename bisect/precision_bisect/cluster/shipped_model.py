"""What of a run goes to each worker elsewhere, and what children there make of it.

The files of the model and the samples go once; specs say where a worker has them.
"""

import hashlib
import pickle
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from precision_bisect.backends.backend_plugin import pick_backend
from precision_bisect.errors import ExecutorError
from precision_bisect.execution.evaluator_spec import EvaluatorSpec, Made, Survey, survey
from precision_bisect.machine.installed_code import code_digest
from precision_bisect.runs.runfolder import ENGINES
from precision_bisect.search.evaluation import Evaluator

MOST_SENT_BYTES = 2**30
"""A model larger than this is not sent; scheduler and workers hold all of it in memory."""
_PACKAGES = ("precision-bisect", "numpy", "polygraphy")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedModel:
    """The model's files and the samples of a run.

    `model` is the model's path on the driver's machine, `digests` the SHA-256 of each of its
    files by path relative to the model's folder, `contents` their bytes, none where they are too
    many. `samples` is a pickled `evaluation.Samples`, `facts` what the sender says of itself.
    """

    model: Path
    digests: Mapping[str, str]
    contents: Mapping[str, bytes]
    samples: bytes
    facts: Mapping[str, str]


def pack(spec: EvaluatorSpec, most_bytes: int = MOST_SENT_BYTES) -> ShippedModel:
    """Return the model of a spec's run, to ship. Raises ExecutorError where it cannot be read."""
    # Only here ONNX is needed, and workers unpack shipped models, too.
    import onnx

    from precision_bisect.graphs.weights import external_parts

    model = spec.options.model.absolute()
    try:
        proto = onnx.load(model, format="protobuf", load_external_data=False)
        parts = external_parts(proto)
        names = [model.name, *sorted({part.location for part in parts})]
        paths = {name: model.parent / name for name in names}
        small = sum(path.stat().st_size for path in paths.values()) <= most_bytes
        return ShippedModel(
            model=model,
            digests={name: _digest(path) for name, path in paths.items()},
            contents={name: path.read_bytes() for name, path in paths.items()} if small else {},
            samples=pickle.dumps(spec.samples, protocol=pickle.HIGHEST_PROTOCOL),
            facts=facts(),
        )
    except OSError as error:
        raise ExecutorError(
            f"cannot read {model} again: {error.strerror}",
            "put the model back, then go on with --resume",
        ) from error


def unpack(shipped: ShippedModel, folder: Path) -> Path:
    """Return where the model is here: at the same path where that has it, else in `folder`.

    Raises ExecutorError where it is neither here nor in what was shipped, and OSError.
    """
    if all(_same(shipped.model.parent / name, sha) for name, sha in shipped.digests.items()):
        return shipped.model
    if not shipped.contents:
        raise ExecutorError(
            f"{shipped.model} is over {MOST_SENT_BYTES / 2**30:g} GiB, which is not sent to "
            "workers, and is not there under this path",
            "put it on a file system that all of them share",
        )
    for name, data in shipped.contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder / shipped.model.name


def facts() -> Mapping[str, str]:
    """Return what must be the same wherever trials of one run are judged."""
    major, minor, *_ = sys.version_info
    versions = {name: _version(name) for name in _PACKAGES}
    code = {"build of precision-bisect": code_digest()[:12]}
    return {"Python": f"{major}.{minor}", "machine": platform.machine(), **versions, **code}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _same(path: Path, sha256: str) -> bool:
    try:
        return _digest(path) == sha256
    except OSError:
        return False


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSpec:
    """Makes what a spec makes, on a machine where its files are elsewhere.

    `spec` is the file of a pickled `EvaluatorSpec` without samples, `samples` that of those,
    `model` and `keep` the places here of what the spec knows by other paths.
    """

    spec: Path
    samples: Path
    model: Path
    keep: Path

    def evaluator(self, work: Path, looked: Made | None = None) -> Evaluator:
        """Return the evaluator; see `EvaluatorSpec.evaluator`."""
        return self.unpacked().evaluator(work, looked)

    def unpacked(self) -> EvaluatorSpec:
        """Return the spec. Raises UsageError where the script of its check does not run here."""
        spec: EvaluatorSpec = pickle.loads(self.spec.read_bytes())
        return replace(
            spec,
            options=replace(spec.options, model=self.model),
            samples=pickle.loads(self.samples.read_bytes()),
            keep=self.keep,
            engines=self.keep / ENGINES if spec.engines else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteBackend:
    """Which backend a worker has, why that one, and what it says of itself."""

    backend: str
    why: str
    survey: Survey


def describe_backend(away: Path, work: Path) -> RemoteBackend:
    """Choose and make the backend of a pickled `RemoteSpec`, and return what it says of itself.

    `work` is an empty folder. Raises what both do.
    """
    spec = pickle.loads(away.read_bytes()).unpacked()
    name, why = pick_backend(spec.options)
    spec = replace(spec, options=replace(spec.options, backend=name))
    return RemoteBackend(backend=name, why=why, survey=survey(spec.made(work).backend))
