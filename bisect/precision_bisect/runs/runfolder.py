"""The run folder: where everything of one run goes, each file whole or not at all."""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from precision_bisect.errors import RunFolderError, first_of
from precision_bisect.machine.plain_files import whole, written

LEDGER = "ledger.sqlite"
RESULT = "result.json"
EVENTS = "events.jsonl"
STATUS = "status.json"
LAYERS = "layers.json"
REPORT = "report.html"
LAYER_PRECISIONS = "layerPrecisions.txt"
TRTEXEC = "trtexec.sh"
AUTOCAST = "autocast-exclude.txt"
POLYGRAPHY_SCRIPT = "polygraphy_constraints.py"
TORCH_AUTOCAST = "torch_autocast.py"
MIXED_MODEL = "model.mixed.onnx"
MIXED_DATA = f"{MIXED_MODEL}.data"
FP32_MODEL = "model.fp32.onnx"
"""The FP32 form of a file with 16-bit floats, or the model with the interface of --io-types."""
FP32_DATA = f"{FP32_MODEL}.data"
GOLDEN_INPUTS = "golden_inputs.json"
GOLDEN_OUTPUTS = "golden_outputs.json"
RUN_SCRIPT = "run_onnxruntime.py"
GIVEN_MODEL = "model.given.onnx"
"""What Python gave as an `onnx.ModelProto`."""
GIVEN_DATA = f"{GIVEN_MODEL}.data"
FUSED_MODEL = "model.fused.onnx"
FUSED_DATA = f"{FUSED_MODEL}.data"
TAKEN_MODEL = "model.taken.onnx"
TAKEN_DATA = f"{TAKEN_MODEL}.data"
DIAGNOSIS = "diagnosis.json"
TENSOR_ERRORS = "tensor_errors.json"
SCALES = "scales.json"
LOGS = "logs"
ENGINES = "engines"
ENGINE = "model.engine"
TIMING_CACHE = "timing.cache"
REFERENCE = "reference.json"
"""What the engine of `--reference engine` gave, as Polygraphy stores outputs."""
TRTEXEC_ENGINE = "trtexec.engine"
"""What `trtexec.sh` builds, so that it does not replace the engine that was judged."""
VERIFIED = "verify.json"
VERIFIED_ENGINE = "verify.engine.txt"
VERIFIED_LOG = "verify.log"
"""What `verify` found, the library's own words on the engine's layers, and its messages."""
TARGET = "target.json"
"""What a target without this tool made of the plans."""
JUDGING = (GOLDEN_INPUTS, GOLDEN_OUTPUTS, RUN_SCRIPT)
"""What judges the exported model on the target: of one run, whatever it is exported with later."""
EXPORTS = (MIXED_MODEL, MIXED_DATA, FP32_MODEL, FP32_DATA, *JUDGING)
"""What a plan is written to beside the texts that `belonging.exported_texts` names."""
OWN_FILES = (
    *(
        RESULT,
        STATUS,
        EVENTS,
        LAYERS,
        REPORT,
        DIAGNOSIS,
        TENSOR_ERRORS,
        *EXPORTS,
        FUSED_MODEL,
        FUSED_DATA,
    ),
    *(TAKEN_MODEL, TAKEN_DATA, GIVEN_MODEL, GIVEN_DATA, SCALES, REFERENCE, ENGINE, TIMING_CACHE),
    *(TRTEXEC_ENGINE, VERIFIED, VERIFIED_ENGINE, VERIFIED_LOG, TARGET),
    *(f"{LEDGER}-wal", f"{LEDGER}-shm", LEDGER),
)
"""In the order of removal: a log left beside a new ledger would be replayed into it."""
# So many runs are named where none was.
_NAMED = 3
LOCK = ".lock"
OWNER = ".owner.json"
RUNG_FOLDER = re.compile(r"rung-\d+-\w+")
POINT_FOLDER = re.compile(r"point-.+")
_FOLDERS = re.compile(rf"{LOGS}|{ENGINES}|{RUNG_FOLDER.pattern}|{POINT_FOLDER.pattern}")


def runs_here() -> str:
    """Return which runs lie in the current folder, in words, at most a few."""
    places = [STATUS, RESULT, LEDGER]
    folders = sorted({path.parent.name for name in places for path in Path().glob(f"*/{name}")})
    some = f"runs in this folder: {first_of(folders, _NAMED)}"
    return some if folders else "no run lies in this folder"


def point_folder(run: Path, point: str) -> Path:
    """Return where exports of a point of the curve other than the answer go, unless told."""
    return run / f"point-{point}"


def refuse_links(folder: Path) -> None:
    """Raise RunFolderError where a file, or a folder of a run's names, is a link.

    What a run writes would follow it out of the folder. The run folder itself may be a link, and
    so may other folders in it, such as those of jobs.
    """
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            ours = _FOLDERS.fullmatch(path.name)
            if path.is_symlink() and (ours or not path.is_dir()):
                raise RunFolderError(
                    f"{path} is a link, and a run writes only inside its folder",
                    "remove the link, or choose another --out",
                )
            if ours and path.is_dir():
                refuse_links(path)


class RunFolder:
    """A folder that files can be written to. Raises RunFolderError where that is not so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with folder_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path) as probe:
                probe.write(b"\0" * 65536)
                probe.flush()
                os.fsync(probe.fileno())

    @property
    def ledger(self) -> Path:
        """The ledger's path."""
        return self.path / LEDGER

    def rung(self, number: int, low: str) -> Path:
        """Return the folder of one search of a ladder, the first has number 1."""
        return self.path / f"rung-{number}-{low}"

    def write(self, name: str, text: str) -> None:
        """Write a text file: complete under its name, or the old one stays.

        Paths that are no Unicode, as Python reads them from the system, are written as they are.
        """
        target = self.path / name
        with folder_errors(target), whole(target) as stream:
            stream.write(text.encode("utf-8", errors="surrogateescape"))

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Yield the path of a file for a writer that itself makes it whole or not at all."""
        with folder_errors(self.path / name):
            yield self.path / name

    def remove(self, name: str) -> None:
        """Remove a file that a former ending of this run left."""
        with folder_errors(self.path / name):
            (self.path / name).unlink(missing_ok=True)


def folder_errors(path: Path) -> AbstractContextManager[None]:
    """Turn OSError into RunFolderError, with the path and what to do."""
    return written(str(path), "choose a writable folder with free space by --out")
