"""The fused model in the run folder, from where exports and later commands take it."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from precision_bisect.atomic import whole
from precision_bisect.loading import Loaded
from precision_bisect.prepare import Prepared
from precision_bisect.runfolder import FUSED_DATA, FUSED_MODEL, RunFolder

_Run = TypeVar("_Run", Loaded, Prepared)


def keep_fused(run: _Run, work: Path, folder: RunFolder) -> _Run:
    """Copy the fused model, if there is one, and return the run over the copy.

    Raises RunFolderError where it cannot be written.
    """
    if run.options.model != work / FUSED_MODEL:
        return run
    for name in (FUSED_DATA, FUSED_MODEL):
        if (work / name).exists():
            with (
                folder.writing(name) as path,
                whole(path) as stream,
                (work / name).open("rb") as source,
            ):
                shutil.copyfileobj(source, stream)
    path = folder.path / FUSED_MODEL
    return replace(
        run,
        options=replace(run.options, model=path),
        model=replace(run.model, path=path),
    )
