"""The answer of a run, read back from its folder: untrusted input, checked value by value."""

import os
import shlex
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from precision_bisect.errors import RunFolderError, printable
from precision_bisect.options import default_run_folder
from precision_bisect.runs import plain_json
from precision_bisect.runs.ledger.ledger_reader import read_ledger
from precision_bisect.runs.locking import owner_of
from precision_bisect.runs.results.result import KEYS, RESULT_SCHEMA, Result
from precision_bisect.runs.results.run_status import told_of
from precision_bisect.runs.runfolder import LEDGER, LOCK, RESULT, RUNG_FOLDER, STATUS, runs_here
from precision_bisect.runs.typed_json import typed

# Longest value that an error quotes, in characters.
_SHOWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The result of a run, with the path of the file, and of the model as the run was told it.

    `model` is MODEL.onnx where the folder does not tell. `outdated` tells that the run has gone on
    since: the result is of an earlier ending.
    """

    result: Result
    path: Path
    model: Path
    outdated: bool

    @property
    def answered(self) -> bool:
        """Whether the run has an answer, the best so far included."""
        whole = self.result.status.answers
        return whole or bool(self.result.kept)


def last_run(named: Path) -> Path:
    """Return the folder of a model's last run, here or beside it, where a model is named.

    Anything else is what was named: a run folder, or a file in one. Raises RunFolderError for a
    model that has no run, or where another model of that name has; by its name a file is a model
    if it ends in .onnx.
    """
    if os.path.isdir(named) or named.suffix == ".json":  # noqa: PTH112 - never raises
        return named
    here = default_run_folder(named)
    others: list[str] = []
    for place in (here, named.with_name(here.name)):
        if os.path.isdir(place):  # noqa: PTH112
            other = _another(place, named)
            if not other:
                return place
            others.append(f"{place} holds the run of {other}, not of {named}")
    if others:
        raise RunFolderError(others[0], "name the folder of its run")
    if named.suffix == ".onnx" and os.path.isfile(named):  # noqa: PTH113 - never raises
        raise RunFolderError(
            f"there is no run of {named}: {here} does not exist",
            f"search first: precision-bisect {named}; or name the run folder",
        )
    return named


def _another(run: Path, model: Path) -> str:
    """Return the other file of the same name that a run is of, "" where it is none."""
    status = told_of(run)
    if status is None:
        return ""
    # As it was typed, mostly where the folder was made; one that leads nowhere tells nothing.
    with suppress(OSError, ValueError):
        if not (run.parent / status.run.model).samefile(model):
            return printable(status.run.model)
    return ""


def read_saved(path: Path) -> Saved:
    """Read a `result.json`, or the one in a run folder, whatever the model was.

    Raises RunFolderError for a file that is missing or damaged, or from another version.
    """
    file = result_file(path)
    status = told_of(file.parent)
    # A run that goes on may have a result of before beside it.
    going_on = status is not None and status.state == "searching"
    if going_on and not file.exists():
        raise RunFolderError(
            f"{file.parent} has no result yet",
            f"see precision-bisect status {shlex.quote(str(file.parent))}",
        )
    hint = "name a run folder, or the result.json in one"
    if not (path.is_dir() and file.exists()):
        hint = f"{hint}; {runs_here()}"
    result = read_result(file, hint)
    return Saved(
        result=replace(result, message=status.message if status else "", out=file.parent),
        path=file,
        model=Path(printable(status.run.model) if status else "MODEL.onnx"),
        outdated=status is not None and status.state == "searching",
    )


def result_file(path: Path) -> Path:
    """Return the `result.json` in a run folder; any other path is that of the file itself."""
    return path / RESULT if os.path.isdir(path) else path  # noqa: PTH112 - never raises


def read_result(file: Path, hint: str) -> Result:
    """Return what a `result.json` holds.

    Raises RunFolderError: with the hint where there is none, else for a value that no run writes.
    """
    try:
        fields = plain_json.read(file)
    except FileNotFoundError as error:
        raise RunFolderError(f"no finished run: {file} does not exist", hint) from error
    except OSError as error:
        raise RunFolderError(f"cannot read {file}: {error.strerror}", "check the path") from error
    except ValueError as error:
        raise RunFolderError(f"{file} holds no result: it is not JSON", hint) from error
    schema = fields.get("schema") if isinstance(fields, dict) else None
    # Before any field is read: those of another version may have the same names and mean something
    # else.
    if schema != RESULT_SCHEMA:
        raise RunFolderError(
            f"{file} is no result.json of version {RESULT_SCHEMA}: its schema is {quoted(schema)}",
            "name the result.json of a run, or run the search again with this version",
        )
    try:
        return typed(Result, {key: fields[key] for key in KEYS if key in fields})
    except ValueError as error:
        raise damaged(file, str(error)) from error


def lacks(folder: Path, name: str) -> RunFolderError:
    """Return the error for a folder without a file that a run writes as it begins.

    A run that ended before has left its lock, and where its time was up a result without trials.
    """
    hint = "name the folder that the search was told by --out, or MODEL.precision-bisect"
    if RUNG_FOLDER.fullmatch(folder.name) and (folder / LEDGER).exists():
        return RunFolderError(f"{folder} is one search of a ladder", "name the folder above")
    if name != STATUS and (folder / STATUS).exists():
        return RunFolderError(f"{folder} has no {name} any more", "begin the run again")
    # Before the ledger: while its process begins it may have no tables yet.
    owner = owner_of(folder)
    if owner is not None and owner.alive is not False:
        return RunFolderError(
            f"{folder} was taken by {owner}, which has not begun to search", "ask again soon"
        )
    tried = (folder / LEDGER).exists() and read_ledger(folder / LEDGER).trials
    if tried or ((folder / RESULT).exists() and read_result(folder / RESULT, hint).fingerprint):
        return RunFolderError(f"{folder} holds a run and no {name}", "go on with --resume")
    if any((folder / left).exists() for left in (LEDGER, RESULT, LOCK)):
        return ended_before_trials(folder)
    return RunFolderError(f"{folder} is no run folder, it has no {name}", hint)


def ended_before_trials(folder: Path) -> RunFolderError:
    """Return the error for a run that has nothing to tell but that it ended."""
    return RunFolderError(
        f"the run in {folder} ended before its first trial",
        "begin it again by its command, with --resume; give it more time if --max-time ended it",
    )


def damaged(file: Path, what: str) -> RunFolderError:
    """Return the error for a result that no run has written."""
    return RunFolderError(
        f"{file} is damaged: {what}", "name a result.json that a run has written"
    )


def quoted(value: object) -> str:
    """Return a value as an error shows it."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
