"""Calls of outside software, each in a child process: it may crash, hang, or raise anything."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Children:
    """Calls in a process that is started anew where it crashed or took too long."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._pool: ProcessPoolExecutor | None = None

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | str:
        """Return what a function of a module returns, or in words why it did not."""
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, mp_context=spawn)
        try:
            return self._pool.submit(function, *args, **kwargs).result(self._timeout_s)
        except BrokenProcessPool:
            self._pool = None
            return "the process crashed"
        except TimeoutError:
            for process in list(self._pool._processes.values()):
                process.kill()
            self._pool = None
            return f"no end within {self._timeout_s:g} s"
        except Exception as error:  # whatever a part raises is what came of it
            return one_line(f"{type(error).__name__}: {error}")


def one_line(text: str) -> str:
    """Return words that fit into the cell of a table."""
    return " ".join(text.replace("|", "/").split())[:300]
