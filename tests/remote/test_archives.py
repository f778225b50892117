"""What comes back from a host, which may be anything: archives, and bytes that trickle."""

import io
import os
import tarfile
from pathlib import Path
from subprocess import TimeoutExpired

import pytest

from precision_bisect.backends.remote.archives import BESIDE, pack, unpack
from precision_bisect.backends.remote.marks import chunks

MOST = 2**20


class LargeError(Exception):
    """More than is taken."""


def packed(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    pack(files, stream)
    return stream.getvalue()


def claiming(size: int) -> bytes:
    """Return an archive whose first header claims a long name of so many bytes."""
    entry = tarfile.TarInfo("name")
    entry.type, entry.size = tarfile.GNUTYPE_LONGNAME, size
    return entry.tobuf(tarfile.GNU_FORMAT) + packed({"status": b"0\n"})


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\xff" * 5000,
        packed({"status": b"0\n", "log": b"x" * 900})[:1200],
        packed({"status": b"0\n", "log": b"x" * 900})[:1024],
        packed({"status": b"0\n", "log": b"x" * 900})[:1600],
        packed({"log": b"no status"}),
        claiming(2**70),
        claiming(2**50),
    ],
    ids=[
        "nothing",
        "bytes",
        "header",
        "end",
        "cut",
        "no status",
        "a size beyond C's",
        "a size beyond memory",
    ],
)
def test_what_is_no_whole_archive_is_one_kind_of_error(junk: bytes, tmp_path: Path) -> None:
    """The connection counts as lost then, whatever the reader of archives makes of it."""
    with (tmp_path / "junk").open("w+b") as stream:
        stream.write(junk)
        stream.seek(0)
        with pytest.raises(EOFError):
            unpack(stream, tmp_path, MOST, LargeError)


def test_files_are_bounded_together(tmp_path: Path) -> None:
    """Thousands of holes, each below the limit of a file, would fill the disk here."""
    files = {f"{number:04d}_v.npy": bytes(MOST // 2) for number in range(9)}
    with pytest.raises(LargeError):
        unpack(io.BytesIO(packed({**files, "status": b"0"})), tmp_path, MOST, LargeError)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= MOST + BESIDE


def test_time_is_earned_by_bytes() -> None:
    """What arrives at a rate may take long; what trickles, or ends without an end, may not."""
    reads, writes = os.pipe()
    with os.fdopen(reads, "rb", buffering=0) as stream, os.fdopen(writes, "wb", 0) as host:
        host.write(b"x" * 10)
        arriving = chunks(stream, 0.0, slowest=1e-3)
        assert b"x" * 10 == next(arriving)
        host.write(b"y")
        assert b"y" == next(arriving)
        host.write(b"z")
        trickling = chunks(stream, 0.0, slowest=1e9)
        assert b"z" == next(trickling)
        with pytest.raises(TimeoutExpired):
            next(trickling)
