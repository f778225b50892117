"""A host with trtexec, reached by the system's ssh: calls of that tool in a folder there.

One connection, which ssh shares between calls, holds the folder: as soon as it is gone, for
whatever reason, the folder goes, and with it what still runs in there. All scripts are POSIX.
"""

import io
import select
import shlex
import subprocess
import tarfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from precision_bisect.errors import ExecutorError, UsageError, printable, shortened
from precision_bisect.runs.plain_json import LARGEST_FILE

_OPTIONS = (
    *("BatchMode=yes", "StrictHostKeyChecking=yes", "PasswordAuthentication=no"),
    *("ConnectTimeout=15", "ServerAliveInterval=15", "ServerAliveCountMax=3"),
    *("ClearAllForwardings=yes", "ForwardAgent=no", "ForwardX11=no", "LogLevel=ERROR"),
    *("PermitLocalCommand=no", "RemoteCommand=none", "ControlPersist=no"),
)
"""What a user's own ssh_config cannot change: no question is asked, every host key is checked, and
nothing but our connection is made."""
_BEAT_S = 15.0
"""Seconds between two signs of life; the host waits for four times as long."""
_OPENING_S = 60.0
"""Seconds after which a host that does not answer counts as lost. A bound."""
_MARK = "precision-bisect-folder "
_PREFIX = "precision-bisect"

_HOLD = f"""\
umask 077
command -v "$1" > /dev/null 2>&1 || exit 84
base=${{2:-${{TMPDIR:-/tmp}}}}
[ -d "$base" ] && [ -w "$base" ] || exit 85
for old in "$base"/{_PREFIX}.*; do
    [ -O "$old" ] && [ ! -L "$old" ] || continue
    pid=${{old##*/{_PREFIX}.}}
    pid=${{pid%%.*}}
    case $pid in '' | *[!0-9]*) continue ;; esac
    kill -0 "$pid" 2> /dev/null || rm -rf "$old"
done
here=$(mktemp -d "$base/{_PREFIX}.$$.XXXXXX") && mkdir "$here/inputs" || exit 83
trap : HUP INT TERM PIPE
printf '%s\\n' "{_MARK}$here"
limit='timeout 60'
command -v timeout > /dev/null 2>&1 || limit=
while $limit sh -c 'read beat'; do :; done
tries=0
until rm -rf "$here" 2> /dev/null || [ $tries -gt 60 ]; do tries=$((tries + 1)); sleep 1; done
"""
"""Holds the folder as long as signs of life come, after it has removed those that nobody holds."""

_CALL = """\
umask 077
cd "$1" || exit 81
here=$1 wait=$2 stale=$3 tool=$(command -v "$4") || exit 84
shift 4
if [ -r "$tool" ] && command -v flock > /dev/null 2>&1; then
    exec 9< "$tool"
    flock $wait 9 || exit 82
fi
full() {
    dd if=/dev/zero of=room bs=65536 count=16 2> /dev/null && rm -f room && return 1
    rm -f room
}
rm -rf out feed $stale
mkdir out && tar xf - && { [ ! -f weights.part ] || cat weights.part >> weights.bin; } || {
    full && exit 83
    exit 81
}
rm -f weights.part
group=setsid
command -v setsid > /dev/null 2>&1 || group=
$group "$tool" "$@" > out/log 2>&1 < /dev/null &
job=$!
(
    while [ -d "$here" ]; do sleep 1; done
    kill -s KILL -- "-$job" || kill -s KILL "$job"
) 9<&- < /dev/null > /dev/null 2>&1 &
watch=$!
wait $job
echo $? > out/status
kill $watch
full && exit 83
exec tar cf - out
"""
"""Unpacks what is sent and calls the tool, nothing beside it on the host; sends `out` back."""


class _Code(IntEnum):
    """How the scripts end; 81 is a folder that is gone, 255 is ssh's own."""

    BUSY = 82
    FULL = 83
    NO_TOOL = 84
    NO_FOLDER = 85


class LostConnectionError(Exception):
    """The connection is gone, or could not be made; the message says how."""


class BusyError(Exception):
    """Something else calls the tool of this host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How hosts are reached: trtexec there, a folder for files ("" for TMPDIR), an ssh_config."""

    tool: str
    folder: str = ""
    config: str = ""


@dataclass(slots=True, kw_only=True, weakref_slot=True)
class Host:
    """One host; `work` is a folder here. It serves one thread at a time.

    `sent` has the names of inputs that are in its folder, `weights` how many bytes of weights, and
    `stale` what the next call removes there. A new `connection`, by number, begins with nothing.
    """

    name: str
    reached: Reached
    work: Path
    number: int
    sent: set[str] = field(init=False, default_factory=set)
    weights: int = field(init=False, default=0)
    stale: list[str] = field(init=False, default_factory=list)
    connection: int = field(init=False, default=0)
    lock: threading.RLock = field(init=False, default_factory=threading.RLock)
    _folder: str = field(init=False, default="")
    _end: Any = field(init=False, default=None)

    def open(self) -> None:
        """Connect, unless that is done. Raises LostConnectionError, UsageError, ExecutorError."""
        if self._folder:
            return
        self.sent, self.weights, self.stale = set(), 0, []
        command = shlex.join(["sh", "-c", _HOLD, "sh", self.reached.tool, self.reached.folder])
        with TemporaryFile(dir=self.work) as stderr:
            holder = subprocess.Popen(
                self._ssh("yes", command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=self.work,
                bufsize=0,
            )
            assert holder.stdout is not None
            self._end = weakref.finalize(self, _end, holder)
            with holder.stdout as stream:
                folder = _marked(stream)
            if not folder:
                self._end()
                self._check(holder.returncode, stderr)
                raise self._lost("it did not answer")
        self._folder = folder
        threading.Thread(target=_beat, args=(holder,), daemon=True).start()

    def call(
        self,
        arguments: Sequence[str],
        files: Mapping[str, bytes | Path],
        *,
        patient: bool,
        timeout_s: float | None = None,
    ) -> Mapping[str, bytes]:
        """Call the tool in the folder that `open` made; return what is in `out` afterwards.

        `files` are put there first. In `out` are what the tool wrote, its `log` and exit `status`.
        Unless `patient` raises BusyError while another process calls it. Raises
        LostConnectionError and TimeoutExpired, after both of which the folder is gone, UsageError,
        and ExecutorError for a full disk.
        """
        if not self._folder:
            raise self._lost("the connection is lost")
        stale, self.stale = self.stale, []
        turn = "-x" if patient else "-n"
        words = [self._folder, turn, " ".join(stale), self.reached.tool, *arguments]
        with (
            TemporaryFile(dir=self.work) as sent,
            TemporaryFile(dir=self.work) as got,
            TemporaryFile(dir=self.work) as stderr,
        ):
            _pack(files, sent)
            try:
                code = subprocess.run(
                    self._ssh("no", shlex.join(["sh", "-c", _CALL, "sh", *words])),
                    stdin=sent,
                    stdout=got,
                    stderr=stderr,
                    cwd=self.work,
                    timeout=timeout_s,
                    check=False,
                ).returncode
                if code == _Code.BUSY:
                    self.stale = stale
                    raise BusyError
                self._check(code, stderr)
                got.seek(0)
                return _unpacked(got)
            except (BusyError, UsageError):
                raise
            except BaseException as error:
                self.close()
                if isinstance(error, tarfile.TarError | EOFError):
                    raise self._lost("its answer is cut off") from error
                raise

    def close(self) -> None:
        """Give the folder up, whatever runs there."""
        self._folder = ""
        self.connection += 1
        if self._end is not None:
            self._end()

    def _ssh(self, master: str, command: str) -> list[str]:
        options = (*_OPTIONS, f"ControlMaster={master}", f"ControlPath={self.number}.ssh")
        config = ["-F", self.reached.config] if self.reached.config else []
        flags = [word for option in options for word in ("-o", option)]
        return ["ssh", "-T", *config, *flags, "--", self.name, command]

    def _check(self, code: int, stderr: IO[bytes]) -> None:
        """Raise what a script's end means, unless that is 0."""
        if code == _Code.NO_TOOL:
            raise UsageError(
                f"host {self.name} has no {self.reached.tool}",
                "give --backend-option trtexec=/usr/src/tensorrt/bin/trtexec",
            )
        if code == _Code.NO_FOLDER:
            raise UsageError(
                f"host {self.name} has no folder {self.reached.folder or '$TMPDIR'} to write to",
                "name one by --backend-option folder=/path",
            )
        if code == _Code.FULL:
            where = self.reached.folder or "its TMPDIR or /tmp"
            raise ExecutorError(
                f"the disk of host {self.name} is full ({where})",
                "free some space there, or give --backend-option folder=/path; "
                "go on with --resume",
            )
        if code:
            stderr.seek(0)
            lines = stderr.read(2**16).decode("utf-8", errors="replace")
            raise self._lost(" ".join(lines.split()) or "the connection is lost")

    def _lost(self, why: str) -> LostConnectionError:
        return LostConnectionError(shortened(printable(f"{self.name}: {why}"), 300))


def _marked(stream: IO[bytes]) -> str:
    """Return the folder that the holder tells, after whatever a login prints; "" for none."""
    text, end = b"", time.monotonic() + _OPENING_S
    while (remaining_s := end - time.monotonic()) > 0 and len(text) < 2**16:
        if select.select([stream], [], [], remaining_s)[0]:
            more = stream.read(4096)
            text += more
            for line in text.decode("utf-8", errors="replace").split("\n")[:-1]:
                if line.startswith(_MARK):
                    return line.removeprefix(_MARK)
            if not more:
                break
    return ""


def _beat(holder: "subprocess.Popen[bytes]") -> None:
    """Send signs of life until the connection ends."""
    assert holder.stdin is not None
    with suppress(OSError, ValueError):
        while holder.poll() is None:
            holder.stdin.write(b"\n")
            time.sleep(_BEAT_S)


def _end(holder: "subprocess.Popen[bytes]") -> None:
    """End the connection, which tells the host to clear up; one that does not answer is killed."""
    assert holder.stdin is not None
    with suppress(OSError):
        holder.stdin.close()
    try:
        holder.wait(timeout=5)
    except subprocess.TimeoutExpired:
        holder.kill()
        holder.wait()


def _pack(files: Mapping[str, bytes | Path], stream: IO[bytes]) -> None:
    """Write an archive, to be read from its beginning."""
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            if isinstance(content, Path):
                entry.size = content.stat().st_size
                with content.open("rb") as source:
                    archive.addfile(entry, source)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    stream.seek(0)


def _unpacked(stream: IO[bytes]) -> Mapping[str, bytes]:
    """Return the plain files of an archive, which is untrusted. Raises TarError, EOFError."""
    contents = {}
    with tarfile.open(fileobj=stream, mode="r:") as archive:
        for entry in archive:
            if entry.isreg() and entry.size <= LARGEST_FILE:
                content = archive.extractfile(entry)
                assert content is not None
                contents[entry.name.rpartition("/")[2]] = content.read()
    if "status" not in contents:
        raise EOFError
    return contents
