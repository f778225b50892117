"""What a test may change in its process, and the next one there would meet."""

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from patience import PATIENCE_S

MAY_CHANGE = frozenset({"PYTEST_CURRENT_TEST", "ORT_DISABLE_TELEMETRY", "TORCHINDUCTOR_CACHE_DIR"})
"""Where pytest says which test it is at, and what the import of a library sets for good."""
_MODULES = "modules"


def process_state() -> Mapping[str, Any]:
    """Return what tests share in a process: signals, variables, folders, the mask of new files."""
    os.umask(mask := os.umask(0o077))
    handlers = {number.name: signal.getsignal(number) for number in signal.Signals}
    return {
        _MODULES: len(sys.modules),
        "timer of signals": signal.getitimer(signal.ITIMER_REAL),
        "folder": Path.cwd(),
        "folder of temporary files": tempfile.gettempdir(),
        "mask of new files": mask,
        **{f"handler of {name}": handler for name, handler in handlers.items()},
        **{
            f"variable {name}": text for name, text in os.environ.items() if name not in MAY_CHANGE
        },
    }


def changes_since(before: Mapping[str, Any]) -> Mapping[str, tuple[Any, Any]]:
    """Return what differs from a state of before: how it was and is, None where it is not.

    A variable that is new where something was imported is a library's, which sets it once.
    """
    now = process_state()
    imported = before[_MODULES] != now[_MODULES]
    told = before if imported else {**before, **now}
    return {
        name: (before.get(name), now.get(name))
        for name in sorted(told.keys() - {_MODULES})
        if before.get(name) != now.get(name)
    }


def threads_left(before: Sequence[threading.Thread]) -> Sequence[threading.Thread]:
    """Return the threads begun since that keep the process alive and do not end by themselves."""
    begun = [each for each in threading.enumerate() if each not in before and not each.daemon]
    for thread in begun:
        thread.join(PATIENCE_S)
    return [thread for thread in begun if thread.is_alive()]
