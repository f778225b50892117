"""`diagnosis.json` read back: untrusted input, checked before anything is told from it."""

from pathlib import Path
from typing import Any

from precision_bisect.diagnosis.findings import SCHEMA
from precision_bisect.errors import RunFolderError
from precision_bisect.run_folder import plain_json
from precision_bisect.run_folder.json_values import (
    Unfit,
    anything,
    count,
    flag,
    many,
    maybe,
    number,
    row,
    table,
    text,
)
from precision_bisect.run_folder.runfolder import DIAGNOSIS


def read_diagnosis(folder: Path) -> dict[str, Any]:
    """Return the contents of a run's `diagnosis.json`, as `Findings.to_json` gives them.

    Raises RunFolderError where there is none, or none that this version has written.
    """
    try:
        found = plain_json.read_object(folder / DIAGNOSIS)
        _CONTENTS(found)
    except (OSError, ValueError, Unfit) as error:
        raise RunFolderError(
            f"{folder} has no readable {DIAGNOSIS}",
            "a run writes it when it ends; give the model to explain it without a run",
        ) from error
    return found


def _version(value: Any) -> None:
    if value != SCHEMA:
        raise Unfit(value)


def _figures(value: Any) -> None:
    """Read the figures of a layer, which differ with its cause."""
    told = table(anything)(value)
    maybe(number)(told.get("alone_error"))
    if maybe(text)(told.get("tensor")) and maybe(count)(told.get("sample")) is not None:
        row(index=many(count), largest=number)(told)


def _way(value: Any) -> None:
    """Read names along a way, which has a beginning."""
    if not many(text)(value):
        raise Unfit(value)


_HURTS = row(output=text, error=number, path=_way, errors=many(maybe(number)))
_LAYER = row(
    **dict.fromkeys(("layer", "low", "high", "cause", "evidence"), text),
    kept=flag,
    figures=_figures,
    hurts=maybe(_HURTS),
    advice=many(text),
)
_BIRTH = row(layer=text, born=text, path=_way, output=maybe(text))
_ADVICE = row(**dict.fromkeys(("id", "title", "text", "evidence"), text), layers=many(text))
_CONTENTS = row(
    schema=_version, low=text, layers=many(_LAYER), spread=many(_BIRTH), advice=many(_ADVICE)
)
