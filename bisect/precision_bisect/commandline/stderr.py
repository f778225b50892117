"""What commands say on standard error: whole lines, each printable, whatever became of it."""

import sys
from contextlib import suppress

from precision_bisect.errors import printable


def complain(line: str) -> None:
    """Write a line that says who speaks."""
    tell(f"precision-bisect: {line}")


def tell(line: str) -> None:
    """Write a line as it is; a stream that is gone is no error."""
    with suppress(OSError):
        sys.stderr.write(f"{printable(line)}\n")
