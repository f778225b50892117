"""Keeps what was made for a run (a fused model, a reference) in its run folder.

Exports and later commands read it there; the work folder is removed at the end.
"""

import filecmp
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from precision_bisect.errors import RunFolderError
from precision_bisect.machine.plain_files import whole
from precision_bisect.pipeline.loading import Loaded
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.runs.runfolder import REFERENCE, RunFolder

_Run = TypeVar("_Run", Loaded, Prepared)


def keep_made(run: _Run, work: Path, folder: RunFolder) -> _Run:
    """Copy the model that was made in `work`, if one was, and return the run over the copy.

    An engine's outputs that are the reference are copied, too. Raises RunFolderError where the run
    folder cannot be written, or has another such file: that of a run which is there already.
    """
    made = run.options.model
    ours = work in made.parents
    models: tuple[Path, ...] = (made.with_name(f"{made.name}.data"), made) if ours else ()
    for source in (work / REFERENCE, *models):
        if source.exists():
            with folder.writing(source.name) as path:
                _copy(source, path)
    if not ours:
        return run
    path = folder.path / made.name
    return replace(
        run,
        options=replace(run.options, model=path),
        model=replace(run.model, path=path),
    )


def _copy(source: Path, path: Path) -> None:
    """Copy a file, unless it is there already; nothing that differs is replaced."""
    if not path.exists():
        with whole(path) as stream, source.open("rb") as held:
            shutil.copyfileobj(held, stream)
    elif not filecmp.cmp(source, path, shallow=False):
        raise RunFolderError(
            f"{path} is of another run",
            "replace that run with --overwrite, or choose another --out",
        )
