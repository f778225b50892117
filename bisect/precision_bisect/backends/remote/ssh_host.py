"""A host with trtexec, reached by the system's ssh: calls of that tool in a folder there.

One connection, which ssh shares between calls, holds the folder: as soon as it is gone, for
whatever reason, the folder goes, and with it what still runs in there. All scripts are POSIX.
"""

import io
import os
import re
import shlex
import shutil
import subprocess
import tarfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NoReturn

from precision_bisect.backends.remote.marks import BEGUN, MARK, StandardError, chunks, to_mark
from precision_bisect.backends.trtexec.trtexec_results import DIGITS, LOG_END
from precision_bisect.errors import ExecutorError, UsageError, printable, shortened
from precision_bisect.machine.process_ends import of_shell
from precision_bisect.runs.plain_json import LARGEST_FILE

# What a user's own ssh_config cannot change: no question is asked, every host key is checked, and
# nothing but our connection is made.
_OPTIONS = (
    *("BatchMode=yes", "StrictHostKeyChecking=yes", "PasswordAuthentication=no"),
    *("ConnectTimeout=15", "ServerAliveInterval=15", "ServerAliveCountMax=3"),
    *("ClearAllForwardings=yes", "ForwardAgent=no", "ForwardX11=no", "LogLevel=ERROR"),
    *("PermitLocalCommand=no", "RemoteCommand=none", "ControlPersist=no"),
)
# Seconds between two signs of life; the host waits for four times as long.
_BEAT_S = 15.0
# Seconds after which a host that does not answer counts as lost. A bound.
_OPENING_S = 60.0
# Bytes a second that a link takes at the least. A bound.
_SLOWEST = 10_000
_BESIDE, _MOST_FILES = 2**20, 2**12
"""Bytes that come beside the largest file, and how many files are looked at."""
# A file of ours, or of a tensor as trtexec calls it.
_PLAIN_NAME = re.compile(r"[a-z][a-z0-9.-]{,31}|\d{4,9}_[A-Za-z0-9._,-]{1,180}\.npy", re.ASCII)
_PREFIX = "precision-bisect"
WEIGHTS_PART, LOG = "weights.part", "log"
"""What is sent to go behind the weights there, and what comes back of the tool's own words."""

# Holds the folder as long as signs of life come, after it has removed those that nobody holds.
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
printf '\\n%s\\n' "$here" '{MARK}'
limit='timeout 60'
command -v timeout > /dev/null 2>&1 || limit=
while $limit sh -c 'read beat'; do :; done
tries=0
until rm -rf "$here" 2> /dev/null || [ $tries -gt 60 ]; do tries=$((tries + 1)); sleep 1; done
"""

# Unpacks what is sent and calls the tool, nothing beside it on the host; sends `out` back.
_CALL = f"""\
umask 077
cd "$1" || exit 81
here=$1 wait=$2 stale=$3 most=$4 tool=$(command -v "$5") || exit 84
shift 5
if [ -r "$tool" ] && command -v flock > /dev/null 2>&1; then
    exec 9< "$tool"
    flock $wait 9 || exit 82
fi
full() {{
    room=$here/room
    dd if=/dev/zero of="$room" bs=65536 count=16 2> /dev/null && rm -f "$room" && return 1
    rm -f "$room"
}}
rm -rf out feed $stale
part={WEIGHTS_PART}
mkdir out && tar xf - && {{ [ ! -f $part ] || cat $part >> weights.bin; }} || {{
    full && exit 83
    exit 81
}}
rm -f $part
cd out || exit 81
printf '\\n%s\\n' '{BEGUN}'
group=setsid
command -v setsid > /dev/null 2>&1 || group=
$group "$tool" "$@" > {LOG} 2>&1 < /dev/null &
job=$!
(
    while [ -d "$here" ]; do sleep 1; done
    kill -s KILL -- "-$job" || kill -s KILL "$job"
) 9<&- < /dev/null > /dev/null 2>&1 &
watch=$!
wait $job
echo $? > status
kill $watch
full && exit 83
if [ "$(wc -c < {LOG})" -gt {2 * LOG_END} ]; then
    {{ head -c {LOG_END} {LOG}; tail -c {LOG_END} {LOG}; }} > ends && mv ends {LOG}
fi
for made in *; do
    [ "$(wc -c < "$made")" -le "$most" ] || {{ printf '%s\\n' "$made" >&2; exit 86; }}
done
printf '\\n%s\\n' '{MARK}'
exec tar cf - .
"""
# An end of the scripts; `Host._fail` has the others, but for 81, a folder that is gone.
_BUSY = 82


class LostConnectionError(Exception):
    """The connection is gone, or could not be made; the message says how."""


class TooLargeError(Exception):
    """A call leaves more than is taken; the message says what."""


class BusyError(Exception):
    """Something else calls the tool of this host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How hosts are reached: trtexec there, a folder for files ("" for TMPDIR), an ssh_config.

    `most_bytes` is what a file that comes back may have.
    """

    tool: str
    folder: str = ""
    config: str = ""
    most_bytes: int = LARGEST_FILE


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
        words = [_HOLD, "sh", self.reached.tool, self.reached.folder]
        holder, stream, stderr = self._ssh("yes", words, subprocess.PIPE)
        self._end = weakref.finalize(self, _end, holder)
        printed, answer = b"", None
        with stream, suppress(subprocess.TimeoutExpired):
            printed, answer = to_mark(chunks(stream, _OPENING_S))
        # Without the mark nothing that was printed is an answer of ours.
        if answer is None:
            self._end()
            self._fail(holder.returncode, stderr, printed)
        self._folder = printed.decode("utf-8", "replace").rstrip("\n").rpartition("\n")[2]
        # The folder there is removed once nobody is heard, also where this process is killed.
        threading.Thread(target=_beat, args=(holder,), daemon=True).start()

    def call(
        self,
        arguments: Sequence[str],
        files: Mapping[str, bytes | Path],
        into: Path,
        *,
        patient: bool,
        timeout_s: float | None = None,
    ) -> int:
        """Call the tool in a folder `out` of that which `open` made; return its exit code.

        `files` are put beside it first; what it holds afterwards is in the folder `into`, the
        tool's `log` among it. From its start on the tool may take `timeout_s`. Unless `patient`
        raises BusyError while another process calls it.
        Raises LostConnectionError, TimeoutExpired and TooLargeError, after all of which the folder
        is gone there, UsageError, and ExecutorError for a full disk.
        """
        if not self._folder:
            raise self._lost("the connection is lost")
        stale, self.stale = self.stale, []
        reached = self.reached
        turn, most = "-x" if patient else "-n", str(reached.most_bytes)
        words = [_CALL, "sh", self._folder, turn, " ".join(stale), most, reached.tool, *arguments]
        with TemporaryFile(dir=self.work) as sent, TemporaryFile(dir=self.work) as got:
            _pack(files, sent)
            process, stream, stderr = self._ssh("no", words, sent)
            try:
                with stream:
                    printed, answer = self._answer(
                        stream, os.fstat(sent.fileno()).st_size, timeout_s
                    )
                    for chunk in chain([answer or b""], chunks(stream, None)):
                        got.write(chunk)
                        # A host may send without end; the script there has a limit of its own,
                        # which it may not keep.
                        if got.tell() > reached.most_bytes + _BESIDE:
                            raise self._too_large("it")
                code = process.wait()
                if code == _BUSY:
                    # Nothing was done there: the files are still to be removed.
                    self.stale = stale
                    raise BusyError
                if code or answer is None:
                    self._fail(code, stderr, printed)
                self.sent |= {name for name in files if name.startswith("inputs/")}
                if isinstance(part := files.get(WEIGHTS_PART), bytes):
                    self.weights += len(part)
                got.seek(0)
                return self._unpacked(got, into)
            except (BusyError, UsageError):
                raise
            except BaseException as error:
                process.kill()
                process.wait()
                self.close()
                if isinstance(error, tarfile.TarError | EOFError):
                    raise self._lost("its answer is cut off") from error
                raise

    def _answer(
        self, stream: IO[bytes], nbytes: int, limit_s: float | None
    ) -> tuple[bytes, bytes | None]:
        """Return what the shell printed, and the beginning of the answer; None for no answer.

        So many bytes go there first. Raises TimeoutExpired where the tool takes too long.
        """
        sending_s = None if limit_s is None else limit_s + nbytes / _SLOWEST
        try:
            printed, rest = to_mark(chunks(stream, sending_s), BEGUN)
        except subprocess.TimeoutExpired as error:
            raise self._lost("what is sent does not arrive") from error
        answers = chunks(stream, limit_s)
        return printed, None if rest is None else to_mark(chain([rest], answers))[1]

    def close(self) -> None:
        """Give the folder up, whatever runs there."""
        self._folder = ""
        self.connection += 1
        if self._end is not None:
            self._end()

    def _ssh(
        self, master: str, words: Sequence[str], stdin: IO[bytes] | int
    ) -> tuple["subprocess.Popen[bytes]", IO[bytes], StandardError]:
        """Start a script there; return the process, what it will print, and its errors."""
        options = (*_OPTIONS, f"ControlMaster={master}", f"ControlPath={self.number}.ssh")
        config = ["-F", self.reached.config] if self.reached.config else []
        flags = [word for option in options for word in ("-o", option)]
        process = subprocess.Popen(
            ["ssh", "-T", *config, *flags, "--", self.name, shlex.join(["sh", "-c", *words])],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.work,
            bufsize=0,
        )
        assert process.stdout is not None and process.stderr is not None
        return process, process.stdout, StandardError(process.stderr)

    def _fail(self, code: int, stderr: StandardError, printed: bytes) -> NoReturn:
        """Raise what the end of a script means that has not answered."""
        lines = stderr.lines() or [""]
        words = " ".join(" ".join(lines).split())
        folder = self.reached.folder
        other_folder = "--backend-option folder=/path"
        # Exit codes of the scripts that are sent.
        errors: dict[int, Exception] = {
            83: ExecutorError(
                f"the disk of host {self.name} is full ({folder or 'its TMPDIR or /tmp'})",
                f"free some space there, or give {other_folder}; go on with --resume",
            ),
            84: UsageError(
                f"host {self.name} has no {self.reached.tool}",
                "give --backend-option trtexec=/usr/src/tensorrt/bin/trtexec",
            ),
            85: UsageError(
                f"host {self.name} has no folder {folder or '$TMPDIR'} to write to",
                f"name one by {other_folder}",
            ),
            86: self._too_large(lines[-1]),
        }
        if code in errors:
            raise errors[code]
        if start := shortened(printed.decode("utf-8", "replace"), 100):
            told = f"its shell prints {start!r} and does not call what it is told"
            words = f"{told}; {words}" if words else told
        raise self._lost(words or ("the connection is lost" if code else "it did not answer"))

    def _lost(self, why: str) -> LostConnectionError:
        return LostConnectionError(shortened(printable(f"{self.name}: {why}"), 300))

    def _too_large(self, what: str) -> TooLargeError:
        mib = self.reached.most_bytes / 2**20
        return TooLargeError(printable(f"{shortened(what)} from {self.name} is over {mib:g} MiB"))

    def _unpacked(self, stream: IO[bytes], into: Path) -> int:
        """Write what came back, which is untrusted; return the tool's code as of `how_ended`.

        Raises TarError, EOFError, TooLargeError.
        """
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            for entry in islice(archive, _MOST_FILES):
                name = entry.name.rpartition("/")[2]
                # What an archive calls holes takes no room in it.
                if entry.size > self.reached.most_bytes:
                    raise self._too_large(name)
                content = archive.extractfile(entry) if entry.isreg() else None
                if content is not None and _PLAIN_NAME.fullmatch(name):
                    with (into / name).open("wb") as file:
                        shutil.copyfileobj(content, file)
        if not (status := into / "status").exists():
            raise EOFError
        text = status.read_text(encoding="utf-8", errors="replace")
        return of_shell(int(text)) if DIGITS.fullmatch(text) else 1


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
