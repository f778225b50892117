"""Processes that begin at once: forked from one that has imported what they need and run nothing.

As a script, `python lives.py MODULE` waits for lines of JSON: arguments of the MODULE's `main`,
variables of the environment, and the file that takes what is said. Each line has a process of its
own, and is answered with its exit code.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

Live: TypeAlias = Callable[..., int]
"""Takes the arguments of `main`, `said` and `environment` where wanted; returns the exit code."""
SHARED = ("precision_bisect.pipeline.ladder.climb", "polygraphy.comparator")
"""What a search imports as late as it can, but for ONNX Runtime, which starts a thread."""


@contextmanager
def lives(module: str) -> Iterator[Live]:
    """Yield what runs the `main` of a module of this folder in a process that begins at once."""
    command = [sys.executable, __file__, module]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as origin:
        asked, told = origin.stdin, origin.stdout
        assert asked is not None and told is not None

        def live(
            *arguments: object,
            said: Path = Path(os.devnull),
            environment: Mapping[str, str] | None = None,
        ) -> int:
            words = [str(each) for each in arguments]
            asked.write(json.dumps([words, str(said), environment or {}]) + "\n")
            asked.flush()
            return int(told.readline())

        yield live
        asked.close()


def main(module: str) -> None:
    """Fork for each line, and tell how that process ended."""
    begin = import_module(module).main
    for each in SHARED:
        import_module(each)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            live(begin, *json.loads(line))
            return
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


def live(
    begin: Callable[..., Any], words: list[str], said: str, environment: Mapping[str, str]
) -> None:
    """Be a process with its own streams and environment."""
    for stream, file in ((0, os.devnull), (1, said), (2, said)):
        opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, stream)
        os.close(opened)
    os.environ.update(environment)
    tempfile.tempdir = None
    begin(*words)


if __name__ == "__main__":
    main(*sys.argv[1:])
