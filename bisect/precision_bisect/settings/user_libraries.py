"""Libraries and scripts that a user names: looked at before anything loads them."""

import errno
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from precision_bisect.errors import UsageError

PLUGINS = "--plugins"
CUSTOM_OPS = "--ort-custom-ops"
CONFIG_SCRIPT = "--trt-config-postprocess-script"
_FUNCTION = "postprocess_config"
_MAGIC = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
"""How the libraries of Linux, Windows and macOS begin."""
_ELF_SHARED = 3


def check_libraries(paths: Iterable[Path], flag: str) -> None:
    """Raise UsageError for a file of these that is missing, or that is no shared library."""
    for path in paths:
        try:
            if path.exists() and not path.is_file():
                raise OSError(errno.EINVAL, "it is no plain file")
            with path.open("rb") as stream:
                head = stream.read(18)
        except OSError as error:
            raise UsageError(
                f"{flag} cannot read {path}: {error.strerror}", "check the path"
            ) from error
        kind = int.from_bytes(head[16:18], "big" if head[5:6] == b"\2" else "little")
        if not head.startswith(_MAGIC) or (head.startswith(b"\x7fELF") and kind != _ELF_SHARED):
            raise UsageError(f"{flag} {path} is no shared library", "give the .so, .dll or .dylib")


def script_and_function(script: str) -> tuple[Path, str]:
    """Return the parts of SCRIPT.py[:FUNCTION]; the function is Polygraphy's if none is named."""
    path, colon, name = script.rpartition(":")
    return (Path(path), name) if colon and name.isidentifier() else (Path(script), _FUNCTION)


def check_script(script: str) -> None:
    """Raise UsageError where the file of SCRIPT.py[:FUNCTION] is missing."""
    path, _ = script_and_function(script)
    if not path.is_file():
        raise UsageError(f"{CONFIG_SCRIPT}: there is no file {path}", "check the path")


def digests(paths: Sequence[Path], what: str) -> dict[str, str]:
    """Return what verdicts depend on where they depend on these files, by name and place."""
    return {
        f"{what} {path.name}, {number}": hashlib.sha256(path.read_bytes()).hexdigest()
        for number, path in enumerate(paths, 1)
    }
