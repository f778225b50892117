"""Executors: what runs trials. They call a plain function with its arguments.

The driver keeps at most `Workers.count` calls in flight, so an executor needs no queue.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeAlias, TypeVar

from precision_bisect.trial import Kind, Outcome, Proposal

P = ParamSpec("P")
R = TypeVar("R")

_NAME = "precision-bisect trial"


class InPlace(Executor):
    """Runs each call in the caller's thread before `submit` returns.

    Ctrl-C arrives in the main thread, so a build there can be cancelled.
    """

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        """Run the call; KeyboardInterrupt and SystemExit come through at once."""
        future: Future[R] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(fn(*args, **kwargs))
        # KeyboardInterrupt is no Exception: it must reach the driver now, not when it asks.
        except Exception as error:
            future.set_exception(error)
        return future


class Threads(Executor):
    """Runs each call in a daemon thread of its own.

    The standard library's pool would keep the process alive: at exit it waits for its threads,
    though nobody needs their builds any more.
    """

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        """Start the call."""
        future: Future[R] = Future()
        future.set_running_or_notify_cancel()
        call = (future, fn, args, kwargs)
        threading.Thread(target=_fulfil, args=call, name=_NAME, daemon=True).start()
        return future


Evaluate: TypeAlias = Callable[[Proposal], Outcome]
"""Evaluates one proposal; called wherever an executor calls it, several at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """What evaluates a proposal, the executor that calls it, and how many calls at a time."""

    evaluate: Evaluate
    executor: Executor
    count: int = 1


def threads(evaluate: Evaluate, count: int = 1) -> Workers:
    """Return workers that are threads of this process; one works in the caller's own thread."""
    executor = Threads() if count > 1 else InPlace()
    return Workers(evaluate=evaluate, executor=executor, count=count)


def forecasting(trials: Evaluate, forecasts: Evaluate) -> Evaluate:
    """Return what has forecasts evaluated by `forecasts`, and all else by `trials`."""
    return lambda proposal: (forecasts if proposal.kind is Kind.PREDICT else trials)(proposal)


def still_working() -> bool:
    """Tell whether a trial that was given up is still being evaluated in this process."""
    return any(thread.name == _NAME for thread in threading.enumerate())


def _fulfil(
    future: "Future[Any]", fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Run the call, and hand over its result or its exception."""
    try:
        result = fn(*args, **kwargs)
    # Even SystemExit in a thread must end as an outcome, or whoever waits would wait forever.
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
