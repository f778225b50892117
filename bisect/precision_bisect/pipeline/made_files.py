"""What a run makes before it has a folder: models, and an engine's outputs."""

import filecmp
import shutil
from dataclasses import replace
from pathlib import Path

from precision_bisect.errors import RunFolderError
from precision_bisect.machine.plain_files import whole
from precision_bisect.pipeline.loading import Loaded
from precision_bisect.runs.runfolder import REFERENCE, RunFolder


def keep_made(loaded: Loaded, work: Path, folder: RunFolder) -> Loaded:
    """Copy the model that was made in `work`, if one was, and return the same over the copy.

    An engine's outputs that are the reference are copied, too. Raises RunFolderError where the run
    folder cannot be written, or has another such file: that of a run which is there already.
    """
    case = loaded.case
    model_path = case.options.model
    ours = work in model_path.parents
    models: tuple[Path, ...] = (
        (model_path.with_name(f"{model_path.name}.data"), model_path) if ours else ()
    )
    for source in (work / REFERENCE, *models):
        if source.exists():
            with folder.writing(source.name) as path:
                _copy(source, path)
    if not ours:
        return loaded
    path = folder.path / model_path.name
    request = loaded.request
    if work in request.model.parents:
        request = replace(request, model=path)
    options, model = replace(case.options, model=path), replace(case.model, path=path)
    return replace(loaded, request=request, case=replace(case, options=options, model=model))


def _copy(source: Path, path: Path) -> None:
    """Copy a file, unless it is there already; nothing that differs is replaced."""
    if not path.exists():
        with whole(path) as stream, source.open("rb") as original:
            shutil.copyfileobj(original, stream)
    elif not filecmp.cmp(source, path, shallow=False):
        raise RunFolderError(
            f"{path} is of another run",
            "replace that run with --overwrite, or choose another --out",
        )
