"""Functions from the user's own Python files: data loaders and task metrics.

The standard library's importer is used rather than Polygraphy's `import_from_script`, which looks
a script up by its bare name, so that a file named like an imported module gives that module.
"""

import hashlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from precision_bisect.errors import UsageError

_RUNNING = threading.RLock()


def load_function(path: Path, name: str) -> Callable[..., Any]:
    """Return the function `name` of the Python file at `path`.

    The file may import modules beside it. Raises UsageError when the file is missing, does not
    run, or lacks the function.
    """
    if not path.is_file():
        raise UsageError(f"no such script: {path}", "check the path")
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(f"precision_bisect_user_{place}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file", "its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up there
    try:
        with running_script(path):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's script may raise anything
        del sys.modules[spec.name]
        raise UsageError(
            f"{path} does not run: {first_line(error)}", "run it on its own first"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{path} has no function {name}()", f"define {name} in it")
    found: Callable[..., Any] = function
    return found


@contextmanager
def running_script(path: Path) -> Iterator[None]:
    """Inside the block, imports find what lies beside the script, and prints go to stderr.

    One thread at a time is inside: both are the process's, and scripts are not written for more.
    """
    folder = str(path.resolve().parent)
    with _RUNNING:
        sys.path.insert(0, folder)
        try:
            with redirect_stdout(sys.stderr):
                yield
        finally:
            if folder in sys.path:
                sys.path.remove(folder)


def first_line(error: BaseException) -> str:
    """Return the first line of a foreign error, or its class where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
