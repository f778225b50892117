"""`precision-bisect doctor`: what is installed, what works, and what to install for more.

With `--bundle` it writes an archive of what tells how a run went, to send to others. It holds
files by name, and only texts: no model, no engine, no ledger, no inputs, no outputs. So no bytes
of weights or samples can be in it. Links are not followed.
"""

import io
import json
import os
import platform
import re
import shlex
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path

from precision_bisect.backends.backend_plugin import Availability, availabilities
from precision_bisect.backends.tensorrt.flavour import NAMES, absent, distributions, suited
from precision_bisect.backends.tensorrt.tensorrt_plugin import why_not_started
from precision_bisect.errors import RunFolderError, UsageError, counted
from precision_bisect.machine.gpu import cuda_version, devices, driver_version
from precision_bisect.machine.plain_files import CAREFULLY, whole, written
from precision_bisect.runs import plain_json
from precision_bisect.runs.belonging import exported_texts, logs, matching, refuse_replacing
from precision_bisect.runs.runfolder import (
    EVENTS,
    LAYERS,
    LOGS,
    RESULT,
    RUNG_FOLDER,
    STATUS,
    TRTEXEC,
    VERIFIED,
    VERIFIED_ENGINE,
    VERIFIED_LOG,
)

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
            f"  {name:<{width}} {version or 'missing'}" for name, version in self.packages.items()
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
    # TensorRT's wheels differ by CUDA version in name.
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
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


LARGEST = 16 * 2**20
"""Bytes: of a longer file the end is taken."""
MOST_LOGS = 50
_ROOT = "precision-bisect-bundle"
_SUFFIXES = (".tar.gz", ".tgz")
_NAMES = (RESULT, STATUS, VERIFIED, VERIFIED_ENGINE, VERIFIED_LOG, LAYERS, EVENTS)
_PACKAGES = re.compile(r"(nvidia|cuda|cupy|pycuda|tensorrt|onnx|polygraphy|numpy|torch)", re.I)
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE", "LD_LIBRARY_PATH")
_HOST = re.compile(r'("host": )"[^"]*"')
_MODEL = re.compile(r"^model=(?:\$here/)?(.+)$", re.M)
_HINTS = {
    RESULT: "the run has no result",
    VERIFIED: "precision-bisect verify builds the engine and looks into it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """An archive that was written: its files, and what a run could have added, with what to do."""

    path: Path
    files: Sequence[str]
    missing: Mapping[str, str]

    def to_text(self) -> str:
        lines = [f"Written: {self.path}, {counted(len(self.files), 'file')}; `tar tzf` lists them"]
        lines += [f"  without {name}: {hint}" for name, hint in self.missing.items()]
        return "\n".join(lines) + "\n"


def write_bundle(out: Path, run: Path | None, examination: Examination) -> Bundle:
    """Write the archive of this machine's examination and of a run folder, if one is given.

    Raises UsageError for a name that is no archive's, and RunFolderError for a folder that is no
    run's, or where it cannot be written.
    """
    if not out.name.endswith(_SUFFIXES):
        raise UsageError(
            f"--bundle {out} is no name of an archive",
            f"end it in {_SUFFIXES[0]}; a run comes first: precision-bisect doctor RUN --bundle",
        )
    refuse_replacing(out, _ROOT.encode())
    texts = {"doctor.txt": examination.to_text(), "doctor.json": examination.to_json()}
    texts["machine.json"] = json.dumps(_machine(), indent=2) + "\n"
    if run is not None:
        texts |= _of_run(run)
    places = list(_places(run, texts))
    missing = {name: hint for name, hint in _HINTS.items() if run and name not in texts}
    # Compressed it is known again by the name that gzip gives its contents.
    with (
        written(str(out), "name a writable file by --bundle FILE"),
        whole(out) as stream,
        tarfile.open(f"{_ROOT}.tar", "w:gz", stream) as archive,
    ):
        for name, text in texts.items():
            data = _clean(text, places).encode()
            member = tarfile.TarInfo(f"{_ROOT}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return Bundle(path=out, files=list(texts), missing=missing)


def with_bundle(examination: Examination, bundle: Bundle) -> str:
    """Return the examination and the archive as JSON."""
    written = {**asdict(bundle), "path": str(bundle.path)}
    return json.dumps({**json.loads(examination.to_json()), "bundle": written}, indent=2) + "\n"


def _machine() -> dict[str, Mapping[str, str]]:
    """Return the packages that decide how engines come out, and the variables that do."""
    packages = {
        str(distribution.metadata["Name"]): distribution.version
        for distribution in metadata.distributions()
    }
    return {
        "packages": {name: packages[name] for name in sorted(packages) if _PACKAGES.match(name)},
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def _of_run(run: Path) -> dict[str, str]:
    """Return the texts of a run folder by name. Raises RunFolderError where it is none."""
    texts = {}
    for name in _members(run):
        with suppress(OSError):
            texts[name] = _text(run / name)
    if not texts:
        raise RunFolderError(f"{run} is no run folder", "name the one that a run has written")
    return texts


def _members(run: Path) -> Iterator[str]:
    """Yield the names, inside the folder, of files that may go with it."""
    yield from (*_NAMES, *exported_texts())
    for folder in (run, *matching(run, RUNG_FOLDER)):
        linked = (folder / LOGS).is_symlink() or (folder != run and folder.is_symlink())
        for path in [] if linked else logs(folder)[-MOST_LOGS:]:
            yield path.relative_to(run).as_posix()


def _text(path: Path) -> str:
    """Return the end of a plain file as text. Raises OSError for anything else."""
    descriptor = os.open(path, os.O_RDONLY | CAREFULLY)
    with os.fdopen(descriptor, "rb") as stream:
        file_stat = os.fstat(descriptor)
        if not stat.S_ISREG(file_stat.st_mode):
            raise OSError(f"{path} is no plain file")
        stream.seek(max(0, file_stat.st_size - LARGEST))
        return stream.read(LARGEST).decode("utf-8", errors="replace")


def _places(run: Path | None, texts: Mapping[str, str]) -> Iterator[tuple[re.Pattern[str], str]]:
    """Yield patterns of folders that texts should not name, the longest first, with words."""
    words = {(str(Path.home()), ""): "~"}
    if run is not None:
        words |= {(str(place), ""): "RUN" for place in (run, run.absolute(), run.resolve())}
        for model in _models(texts):
            # Another folder may be called as parts of layers are; the model's name tells.
            suffix = "" if model.is_absolute() else f"/{model.name}"
            words.setdefault((str(model.parent), suffix), "MODELS")
        for library in _libraries(texts):
            words.setdefault((str(library.parent), ""), "LIBRARIES")
    for (folder, suffix), word in sorted(words.items(), key=lambda entry: -len(entry[0][0])):
        path = Path(folder)
        if any(part not in (path.anchor, "..") for part in path.parts):
            yield _pattern(path, suffix), word


def _pattern(path: Path, suffix: str) -> re.Pattern[str]:
    """Match a folder as it is and as JSON has it; a relative one only where a path begins."""
    spelt = "|".join(re.escape(text) for text in (str(path), json.dumps(str(path))[1:-1]))
    if path.is_absolute():
        return re.compile(f"(?:{spelt})")
    return re.compile(rf"(?<![\w.-])(?:{spelt})(?={re.escape(suffix) or '/'})")


def _models(texts: Mapping[str, str]) -> Iterator[Path]:
    """Yield the model as the run was told it, where that leads, and as trtexec.sh has it."""
    with suppress(ValueError, LookupError, TypeError, OSError):
        model = Path(str(plain_json.parse(texts[STATUS])["run"]["model"]))
        yield model
        yield Path(os.path.realpath(model))
    if match := _MODEL.search(texts.get(TRTEXEC, "")):
        with suppress(ValueError):
            yield from map(Path, shlex.split(match[1])[:1])


def _libraries(texts: Mapping[str, str]) -> Iterator[Path]:
    """Yield the plugins, and the script, that the command for Polygraphy names."""
    with suppress(ValueError, LookupError, TypeError):
        command = plain_json.parse(texts[RESULT])["deployment"]["polygraphy"]
        paths = (Path(word) for word in shlex.split(str(command)))
        yield from (path for path in paths if path.is_absolute())


def _clean(text: str, places: Sequence[tuple[re.Pattern[str], str]]) -> str:
    """Return printable text, without the user's folders and the machine's name."""
    for place, word in places:
        text = place.sub(word, text)
    text = _HOST.sub(r'\1""', text)
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )
