"""Python processes that begin at once: forked from one that has imported what they need.

`python -m precision_bisect` imports for a second, as long as the search of a small model takes. So
do the last check, the jobs of a batch, the processes of trials and the workers of a cluster. Here
each is a fork, with the streams, place, environment and parent that the caller asks for; what it
starts in turn is one, too. Tests of a fresh start take the fixture `cold`, and at night all do.
"""

import _posixsubprocess
import atexit
import copyreg
import ctypes
import fcntl
import gc
import importlib
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import process
from pathlib import Path
from typing import Any

import cloudpickle

PROGRAM = "precision_bisect"
COMMON = (
    *("precision_bisect.api", "precision_bisect.pipeline.ladder.climb"),
    *("precision_bisect.exports.recheck", "precision_bisect.execution.child"),
    *("precision_bisect.commandline.main", "loky.backend.popen_loky_posix"),
    # What the others import as late as they can.
    *("onnxruntime", "polygraphy.comparator", "polygraphy.json", "rich.console"),
)
CLUSTER = ("distributed.cli.dask_scheduler", "distributed.cli.dask_worker")
MODULES = {
    PROGRAM: COMMON,
    "precision_bisect.commandline.batch.job_check": COMMON,
    "precision_bisect.exports.recheck": COMMON,
    "loky.backend.popen_loky_posix": COMMON,
    "tiny": COMMON,
    **dict.fromkeys(CLUSTER, (*COMMON, *CLUSTER)),
}
"""What may be run as a module, and what the process that it is forked from has imported."""
FIRST = frozenset(
    {"sitecustomize", "usercustomize", "precision_bisect", "precision_bisect_strategies"}
    | {"numpy", "onnx", "onnxruntime", "polygraphy", "tensorrt", "tensorrt_rtx"}
)
"""What a folder of PYTHONPATH may hold that would come before what has been imported."""
AT_IMPORT = ("PYTHON", "LC_", "LANG", "LD_", "OPENBLAS_", "OMP_", "MKL_", "LOKY_PICKLER")
"""Variables that are read when a process starts, or when something is imported."""
LEAK = "LOKY_MAX_MEMORY_LEAK_SIZE"
CHILD_SUBREAPER = 36
"""The number of `prctl` that has a process adopt what its children leave behind."""
BEGIN = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import warm_processes
warm_processes.begin(*sys.argv[1:])
"""
ARGUMENTS, VARIABLES = 45, 47
"""Where /proc/self/stat has the places of both in memory, after the process's name."""
PADDING = "x" * 8192
STREAMS = 3
MOVED = 200
"""Above the numbers of files that a caller asks for."""

ROOTS = frozenset(map(Path, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
REAL = _posixsubprocess.fork_exec
copyreg.pickle(ctypes.CDLL, lambda library: (ctypes.CDLL, (library._name,)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a process is to be; `files` has the number of each file that comes with it."""

    words: Sequence[str]
    files: Sequence[int]
    folder: str
    mask: int
    group: int
    session: bool
    environment: Mapping[str, str]
    before: Callable[[], None] | None


def started_with(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that a running process cannot take over, and what hides its modules."""
    fixed = {key: text for key, text in environment.items() if key.startswith(AT_IMPORT)}
    for folder in map(Path, fixed.pop("PYTHONPATH", "").split(os.pathsep)):
        if folder.is_absolute() and folder not in ROOTS:
            fixed |= {file.stem: str(file) for file in folder.glob("*") if file.stem in FIRST}
    return fixed


class Origins:
    """The processes that others are forked from, by what they have imported."""

    def __init__(self) -> None:
        self.enabled = False
        self._lock = threading.Lock()
        self._sockets: dict[Sequence[str], socket.socket] = {}
        self._variables = started_with(os.environ)

    def serves(self, words: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Tell whether a fork can stand for this command."""
        return (
            self.enabled
            and words[:2] == [sys.executable, "-m"]
            and words[2] in MODULES
            and started_with(environment) == self._variables
        )

    def fork(self, request: Request, files: Sequence[int]) -> int:
        """Return the process that has begun, a child of this one."""
        with self._lock:
            imports = MODULES[request.words[2]]
            if imports not in self._sockets:
                self._sockets[imports] = self._begin(imports)
            origin = self._sockets[imports]
            # The child's parent ends at once, and this process is the next of its ancestors.
            system = ctypes.CDLL(None)
            system.prctl(CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(origin, [cloudpickle.dumps(request)], files)
                return int(origin.recv(64))
            finally:
                system.prctl(CHILD_SUBREAPER, 0)

    def adopt(self, imports: Sequence[str], origin: socket.socket) -> None:
        """Have a process that was forked begin others from `origin`."""
        self.enabled, self._lock = True, threading.Lock()
        self._sockets = {imports: origin}

    def _begin(self, imports: Sequence[str]) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", "-c", BEGIN, str(theirs.fileno()), *imports, PADDING]
        origin = subprocess.Popen(
            command,
            env={**os.environ, "PADDING": PADDING},
            pass_fds=[theirs.fileno()],
            process_group=0,
        )
        theirs.close()
        atexit.register(origin.wait)
        atexit.register(ours.close)
        return ours


ORIGINS = Origins()


def install() -> None:
    """Have this process's `subprocess` and loky fork what they can."""
    ORIGINS.enabled = True
    _posixsubprocess.fork_exec = fork_exec
    subprocess._fork_exec = fork_exec  # type: ignore[attr-defined]
    setattr(subprocess, "_USE_POSIX_SPAWN", False)  # noqa: B010 - mypy forbids the plain form


def fork_exec(*asked: Any) -> int:
    """Begin a process as `_posixsubprocess.fork_exec` does."""
    arguments, _, _, passed, folder, variables, *pipes = asked[:12]
    kept = [each for each in passed if each != asked[13]]  # That would close as it is executed.
    session, group = asked[15:17]
    mask, before = asked[20:22]
    words = [os.fsdecode(each) for each in arguments]
    if words[1:2] == ["-P"]:  # Nothing of the folder is imported, as forks do not in any case.
        del words[1]
    pairs = [os.fsdecode(each).partition("=") for each in variables or ()]
    environment = {key: text for key, _, text in pairs} if variables else dict(os.environ)
    if asked[17:20] != (None, None, None) or not ORIGINS.serves(words, environment):
        return REAL(*asked)
    if mask < 0:
        os.umask(mask := os.umask(0o077))
    streams = (pipes[0], pipes[3], pipes[5])
    files = [own if given < 0 else given for own, given in enumerate(streams)]
    request = Request(
        words=words,
        files=[*range(STREAMS), *kept],
        folder=os.fsdecode(folder) if folder else str(Path.cwd()),
        mask=mask,
        group=os.getpgrp() if group < 0 else group,
        session=bool(session),
        environment=environment,
        before=before,
    )
    return ORIGINS.fork(request, [*files, *kept])


def serve(requests: socket.socket, imports: Sequence[str]) -> None:
    """Fork for each request until nobody can ask any more."""
    while True:
        data, files, *_ = socket.recv_fds(requests, 1 << 20, 64)
        if not data:
            os._exit(0)
        there, here = os.pipe()
        if between := os.fork():
            for each in files:
                os.close(each)
            os.waitpid(between, 0)  # From now on its child is the caller's.
            os.close(here)
            number = os.read(there, 64)
            os.read(there, 1)  # Once it has its group and its name, as after an `exec`, it ends.
            os.close(there)
            try:
                requests.send(number)
            except OSError:  # who asked was killed meanwhile
                os._exit(0)
            continue
        between = os.getpid()
        if child := os.fork():
            os.write(here, b"%d" % child)
            os._exit(0)
        requests.close()
        begun = fcntl.fcntl(here, fcntl.F_DUPFD, 2 * MOVED)
        be(pickle.loads(data), files, imports, between, begun)


def be(
    request: Request, files: Sequence[int], imports: Sequence[str], between: int, begun: int
) -> None:
    """Be the process, to its end; `begun` is closed once others may take it for what it is."""
    place(request, files)
    while os.getppid() == between:
        time.sleep(0.0005)
    name(request)
    os.close(begun)
    if request.words[2] == PROGRAM:
        ORIGINS.adopt(imports, origin_of(imports))
    else:
        ORIGINS.enabled = False
    _, _, module, *words = request.words
    sys.argv[:] = [module, *words]
    code: object = 1
    try:
        if request.before is not None:
            request.before()
        sys.modules.pop(module, None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
    with suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def place(request: Request, files: Sequence[int]) -> None:
    """Take over files, folder, group, mask and variables; all other files are closed."""
    held = [fcntl.fcntl(each, fcntl.F_DUPFD, MOVED) for each in files]
    os.closerange(0, MOVED)
    for number, file in zip(request.files, held, strict=True):
        os.dup2(file, number)
    os.closerange(MOVED, max(held) + 1)
    os.chdir(request.folder)
    os.umask(request.mask)
    if request.session:
        os.setsid()
    else:
        os.setpgid(0, request.group)
    os.environ.clear()
    os.environ.update(request.environment)
    time.tzset()
    tempfile.tempdir = None
    paths = filter(None, request.environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [each for each in paths if each not in sys.path]
    process.ORIGINAL_DIR = request.folder  # type: ignore[attr-defined]
    importlib.invalidate_caches()
    if settings := sys.modules.get("dask.config"):
        settings.refresh()
    executor = sys.modules.get("loky.process_executor")
    if executor is not None and LEAK in os.environ:
        executor._MAX_MEMORY_LEAK_SIZE = int(os.environ[LEAK])  # type: ignore[attr-defined]
    for number, key in enumerate(("stdin", "stdout", "stderr")):
        former = getattr(sys, key)
        stream = open(  # noqa: SIM115
            number,
            "w" if number else "r",
            buffering=1 if key == "stderr" else -1,
            encoding=former.encoding,
            errors=former.errors,
            closefd=False,
        )
        setattr(sys, key, stream)
        setattr(sys, f"__{key}__", stream)


def name(request: Request) -> None:
    """Have the system tell the words and variables of this process as those asked for."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    variables = [f"{key}={text}" for key, text in request.environment.items()]
    for field, texts in ((ARGUMENTS, request.words), (VARIABLES, variables)):
        start, end = map(int, stat[field : field + 2])
        told = b"".join(os.fsencode(text) + b"\0" for text in texts)[: end - start - 1]
        ctypes.memmove(start, told.ljust(end - start, b"\0"), end - start)


def origin_of(imports: Sequence[str]) -> socket.socket:
    """Fork what this process's own children are forked from, before it does anything else."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        return ours
    os.setpgid(0, 0)
    requests = socket.socket(fileno=fcntl.fcntl(theirs, fcntl.F_DUPFD, MOVED))
    os.closerange(STREAMS, MOVED)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(STREAMS):
        os.dup2(nowhere, number)
    serve(requests, imports)
    raise AssertionError


def begin(number: str, *words: str) -> None:
    """Be what others are forked from."""
    *imports, _ = words
    for module in imports:
        importlib.import_module(module)
    install()
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=int(number)), tuple(imports))
