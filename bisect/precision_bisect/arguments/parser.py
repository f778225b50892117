"""What every command's arguments share."""

import argparse
from pathlib import Path
from typing import Any, NoReturn

from precision_bisect.errors import UsageError


class Parser(argparse.ArgumentParser):
    """The parser of a command, or of the main job, which has no name.

    Flags are written out in full. Wrong usage is an error of this package: one line, exit code 2.
    """

    def __init__(self, command: str = "", **settings: Any) -> None:
        prog = f"precision-bisect {command}".rstrip()
        super().__init__(prog=prog, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"see {self.prog} --help")


def folder(text: str) -> Path:
    """Return the path of a folder that may not exist yet."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path names no folder")
    return Path(text)
