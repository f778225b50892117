"""What a script on a host prints, parted by lines of its own from what its shell prints."""

import os
import select
import subprocess
import time
from collections.abc import Iterable, Iterator
from typing import IO

BEGUN = "precision-bisect: begun"
"""The line that a call prints when all is there and the tool begins."""
MARK = "precision-bisect: called"
"""The line before the answer of a script."""
# Bytes that a shell may print as it starts.
_LONGEST_START = 2**16


def chunks(stream: IO[bytes], limit_s: float | None) -> Iterator[bytes]:
    """Yield what comes until the stream ends. Raises TimeoutExpired after so many seconds."""
    end = time.monotonic() + (limit_s or 0.0)
    while True:
        remaining_s = None if limit_s is None else max(end - time.monotonic(), 0.0)
        if not select.select([stream], [], [], remaining_s)[0]:
            raise subprocess.TimeoutExpired("ssh", limit_s or 0.0)
        if not (chunk := os.read(stream.fileno(), 2**16)):
            return
        yield chunk


def to_mark(stream_chunks: Iterable[bytes], mark: str = MARK) -> tuple[bytes, bytes | None]:
    """Return what comes before the mark, and what follows at once; None where there is no mark."""
    start = b""
    line = f"\n{mark}\n".encode()
    for chunk in stream_chunks:
        start += chunk
        printed, parted, answer = start.partition(line)
        if parted:
            return printed, answer
        if len(start) > _LONGEST_START:
            break
    return start, None
