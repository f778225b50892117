"""One case in a forked child of a warm process: what it wrote where, and how it ended.

The parent has imported all that a command needs and has never opened a session, so that a fork is
safe and a case costs milliseconds. A child works in an empty folder, with bounded memory and size
of files. An audit hook of Python's notes what it writes outside and whom it connects to; what
libraries in C++ do is not seen by it (`tests/backends/test_no_telemetry.py` looks by strace).
"""

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 300.0
"""A case that takes longer hangs, on a busy machine, too."""
MEMORY = 6 * 2**30
FILE = 2**28
_NOTES, _OUT, _ERR = "notes", "out", "err"
_WRITING = {
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
}
_FREE = ("/dev/null", "/proc/", "/sys/")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a case ended: the exit code, negative for a signal; None where it hung."""

    code: int | None
    out: str
    err: str
    notes: tuple[str, ...]
    seconds: float


def warm() -> None:
    """Import what commands import, once for all children."""
    import importlib
    import pkgutil

    import filelock  # noqa: F401
    import onnx.reference  # noqa: F401
    import onnxruntime  # noqa: F401
    import polygraphy.backend.onnxrt
    import polygraphy.comparator
    import polygraphy.json  # noqa: F401

    import precision_bisect
    import precision_bisect_reports
    import precision_bisect_strategies
    from precision_bisect import plugins

    # What is installed stays the same, and is looked up once for all cases.
    for group in (plugins.STRATEGIES, plugins.BACKENDS, plugins.EXPORTERS, plugins.COMPARATORS):
        plugins.installed(group)
    for package in (precision_bisect, precision_bisect_reports, precision_bisect_strategies):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if any(part in module.name for part in (".testing", "__main__", ".pareto")):
                continue
            if "run_onnxruntime" in module.name or "_script_template" in module.name:
                continue
            with contextlib.suppress(Exception):
                importlib.import_module(module.name)
    _read_json()


def _read_json() -> None:
    """Have Polygraphy import what it does at its first look into a file, such as torch."""
    import tempfile

    from precision_bisect.judging.inputs.input_files import read_samples

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.json"
        path.write_text("[[]]")
        with contextlib.suppress(Exception):
            read_samples(path, ["x"])


def run(arguments: Sequence[str], folder: Path, logs: Path, limit_s: float = LIMIT_S) -> Ended:
    """Run the command line in a child whose working folder is `folder`; it logs into `logs`."""
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            _in_child(list(arguments), folder, logs)
        finally:
            os._exit(99)
    code = _waited(child, begun + limit_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    texts = [
        (logs / name).read_bytes().decode("utf-8", errors="replace")
        if (logs / name).exists()
        else ""
        for name in (_OUT, _ERR, _NOTES)
    ]
    notes = tuple(dict.fromkeys(texts[2].splitlines()))
    return Ended(code, texts[0], texts[1], notes, time.monotonic() - begun)


def _waited(child: int, deadline: float) -> int | None:
    """Return the exit code; None once the time is over and the child killed."""
    pause = 0.002
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(pause)
        pause = min(pause * 1.3, 0.05)


def _in_child(arguments: list[str], folder: Path, logs: Path) -> None:
    os.setpgid(0, 0)
    for stream, name in ((1, _OUT), (2, _ERR)):
        file = os.open(logs / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, stream)
    notes = os.open(logs / _NOTES, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False, errors="backslashreplace")
    temporary = folder.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = str(temporary)
    os.environ["GITHUB_STEP_SUMMARY"] = str(folder / "step.md")
    import tempfile

    tempfile.tempdir = None
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(folder)
    _watch(notes, (str(folder.parent), str(logs)))
    from precision_bisect.commandline.main import main

    code = 98
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 97
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 96
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _watch(notes: int, inside: tuple[str, ...]) -> None:
    """Note each write outside, and each connection, from now on."""

    def outside(path: object) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        text = os.fsdecode(os.path.abspath(path))  # noqa: PTH100 - no link is followed first
        real = os.path.realpath(text)
        return not any(each.startswith((*inside, *_FREE)) for each in (real,)) or not (
            text.startswith((*inside, *_FREE))
        )

    def hook(event: str, values: tuple[object, ...]) -> None:
        told = ""
        if event == "open" and len(values) == 3:
            flags = values[2] if isinstance(values[2], int) else 0
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if writes and outside(values[0]):
                told = f"wrote {values[0]!r}"
        elif event in _WRITING and outside(values[0]):
            told = f"{event} {values[0]!r}"
        elif event == "socket.connect":
            told = f"connected {values[1]!r}"
        if told:
            os.write(notes, f"{told}\n".encode(errors="replace"))

    sys.addaudithook(hook)
