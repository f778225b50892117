"""What every command's arguments share."""

import argparse
from pathlib import Path
from typing import NoReturn

from precision_bisect.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Reports wrong usage as an error of this package: one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"see {self.prog} --help")


def folder(text: str) -> Path:
    """Return the path of a folder that may not exist yet."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path names no folder")
    return Path(text)
