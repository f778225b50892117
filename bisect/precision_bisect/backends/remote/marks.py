"""What a script on a host prints, parted by lines of its own from what its shell prints."""

import math
import os
import select
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from typing import IO

TURN = "precision-bisect: its turn"
"""The line that a call prints when no other one is at work there."""
BEGUN = "precision-bisect: begun"
"""The line that a call prints when all is there and the tool begins."""
MARK = "precision-bisect: called"
"""The line before the answer of a script."""
# Bytes that a shell may print as it starts, and that are held of what a host prints.
_LONGEST_START, _HELD = 2**26, 2**16
# Seconds after the end of a process in which what it said last arrives. A bound.
_LAST_WORDS_S = 5.0


def chunks(stream: IO[bytes], limit_s: float | None, slowest: float = math.inf) -> Iterator[bytes]:
    """Yield what comes until the stream ends.

    Raises TimeoutExpired after so many seconds, and one more for each `slowest` bytes that came.
    """
    end = time.monotonic() + (limit_s or 0.0)
    while True:
        remaining_s = None if limit_s is None else max(end - time.monotonic(), 0.0)
        if not select.select([stream], [], [], remaining_s)[0]:
            raise subprocess.TimeoutExpired("ssh", limit_s or 0.0)
        if not (chunk := os.read(stream.fileno(), 2**16)):
            return
        end += len(chunk) / slowest
        yield chunk


def to_mark(stream_chunks: Iterable[bytes], mark: str = MARK) -> tuple[bytes, bytes | None]:
    """Return the end of what comes before the mark, and what follows; None where there is none."""
    start, nbytes = b"", 0
    line = f"\n{mark}\n".encode()
    for chunk in stream_chunks:
        nbytes += len(chunk)
        printed, parted, answer = (start + chunk).partition(line)
        if parted:
            return printed, answer
        start = printed[-_HELD:]
        if nbytes > _LONGEST_START:
            break
    return start, None


class StandardError:
    """What a process says on standard error, of which the end is held."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._end = b""
        self._reader = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._reader.start()

    def lines(self) -> list[str]:
        """Return what it has said, once it has ended."""
        self._reader.join(_LAST_WORDS_S)
        return self._end.decode("utf-8", "replace").splitlines()

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for chunk in chunks(stream, None):
                self._end = (self._end + chunk)[-_HELD:]
