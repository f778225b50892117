"""What a run makes before it has a folder: models, and an engine's outputs."""

import filecmp
import shutil
from dataclasses import replace
from pathlib import Path

from precision_bisect.errors import RunFolderError
from precision_bisect.machine.plain_files import whole
from precision_bisect.pipeline.elsewhere import deployed_as
from precision_bisect.pipeline.fused_case import FusedCase
from precision_bisect.pipeline.loading import Loaded
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.runs.results.endings import Deployable
from precision_bisect.runs.runfolder import FUSED_DATA, FUSED_MODEL, REFERENCE, RunFolder


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
    # Data before the model: a model without its data cannot be opened.
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


def deployed_with(
    prepared: Prepared, fused: FusedCase | None, deploy: Deployable | None, folder: RunFolder
) -> Prepared:
    """Return the run as its plan to deploy is deployed; a model that was made for it is kept.

    One of an earlier answer goes. Raises RunFolderError.
    """
    searched = {prepared.case.options.model.resolve(), prepared.loaded.request.model.resolve()}
    if (folder.path / FUSED_MODEL).resolve() not in searched:
        for name in (FUSED_MODEL, FUSED_DATA):
            folder.remove(name)
    if deploy is None:
        return prepared
    form = None if fused is None else fused.prepared
    if deploy.record.fused and form is not None:
        loaded = keep_made(form.loaded, form.work, folder)
        prepared = replace(form, loaded=loaded, fingerprint=prepared.fingerprint)
    return deployed_as(prepared, deploy.plan, held_in_tf32=deploy.record.tf32)


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
