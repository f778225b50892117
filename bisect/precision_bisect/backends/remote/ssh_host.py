"""A host with trtexec, reached by the system's ssh: calls of that tool in a folder there.

One connection, which ssh shares between calls, holds the folder: as soon as it is gone, for
whatever reason, the folder goes, and with it what still runs in there. All scripts are POSIX.
"""

import os
import shlex
import subprocess
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NoReturn

from precision_bisect.backends.remote.archives import BESIDE, pack, unpack
from precision_bisect.backends.remote.marks import (
    BEGUN,
    MARK,
    TURN,
    StandardError,
    chunks,
    to_mark,
)
from precision_bisect.backends.trtexec.trtexec_results import LOG_END
from precision_bisect.errors import ExecutorError, UsageError, printable, shortened
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
# Bytes a second that a link takes and brings at the least, after the first of those seconds. A
# bound.
_SLOWEST = 10_000
_PREFIX = "precision-bisect"
WEIGHTS_PART, LOG = "weights.part", "log"
"""What is sent to go behind the weights there, and what comes back of the tool's own words."""

# Holds the folder as long as signs of life come, after it has removed those that nobody holds.
_HOLD = f"""\
umask 077
command -v "$1" > /dev/null 2>&1 || exit 84
command -v tar > /dev/null 2>&1 || exit 87
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
printf '\\n%s\\n' '{TURN}'
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
            self._fail(holder.wait(), stderr, printed)
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
            pack(files, sent)
            process, stream, stderr = self._ssh("no", words, sent)
            try:
                with stream:
                    size = os.fstat(sent.fileno()).st_size
                    printed, answer = self._answer(stream, size, timeout_s, patient=patient)
                    self._take(chain([answer or b""], chunks(stream, _OPENING_S, _SLOWEST)), got)
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
                return unpack(got, into, reached.most_bytes, self._too_large)
            except (BusyError, UsageError):
                raise
            except BaseException as error:
                process.kill()
                process.wait()
                self.close()
                if isinstance(error, EOFError):
                    raise self._lost("its answer is cut off, or no archive") from error
                raise

    def _answer(
        self, stream: IO[bytes], nbytes: int, limit_s: float | None, *, patient: bool
    ) -> tuple[bytes, bytes | None]:
        """Return what the shell printed, and the beginning of the answer; None for no answer.

        So many bytes go there first. Raises TimeoutExpired where the tool takes too long.
        """
        try:
            # Who waits for the turn of another process does so for as long as that builds.
            turns = chunks(stream, None if patient else _OPENING_S)
            printed, rest = to_mark(turns, TURN)
            if rest is None:
                return printed, None
            sending = chunks(stream, _OPENING_S + nbytes / _SLOWEST)
            more, rest = to_mark(chain([rest], sending), BEGUN)
        except subprocess.TimeoutExpired as error:
            raise self._lost("what is sent does not arrive") from error
        answers = chunks(stream, limit_s)
        return printed + more, None if rest is None else to_mark(chain([rest], answers))[1]

    def _take(self, arriving: Iterable[bytes], into: IO[bytes]) -> None:
        """Write what arrives. Raises LostConnectionError where it does not, TooLargeError."""
        try:
            for chunk in arriving:
                into.write(chunk)
                # A host may send without end; the script there has a limit of its own, which it
                # may not keep.
                if into.tell() > self.reached.most_bytes + BESIDE:
                    raise self._too_large("it")
        except subprocess.TimeoutExpired as error:
            raise self._lost("what it sends back does not arrive") from error

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
                f"the disk of host {self.name} is full, or read-only "
                f"({folder or 'its TMPDIR or /tmp'})",
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
            87: UsageError(f"host {self.name} has no tar", "install it there"),
        }
        if code in errors:
            raise errors[code]
        if start := shortened(printed.decode("utf-8", "replace"), 100):
            told = f"its shell prints {start!r} and does not call what it is told"
            words = f"{told}; {words}" if words else told
        # One that said nothing in time was killed here.
        raise self._lost(words or ("the connection is lost" if code > 0 else "it does not answer"))

    def _lost(self, why: str) -> LostConnectionError:
        return LostConnectionError(shortened(printable(f"{self.name}: {why}"), 300))

    def _too_large(self, what: str) -> TooLargeError:
        mib = self.reached.most_bytes / 2**20
        return TooLargeError(printable(f"{shortened(what)} from {self.name} is over {mib:g} MiB"))


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
