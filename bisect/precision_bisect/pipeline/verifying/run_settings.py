"""How the engines of a finished run were built, as its result tells: untrusted, so checked."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from precision_bisect.errors import UsageError
from precision_bisect.exports.finished import Finished
from precision_bisect.runs.results.saved import damaged, quoted
from precision_bisect.runs.typed_json import typed
from precision_bisect.settings.engine_settings import NOT_TOLD, EngineSettings
from precision_bisect.settings.reading import CONFIG_SCRIPT, PLUGINS, script_and_function

_NAME = re.compile(r"[\w.-]{1,99}", re.ASCII)
"""Of an entry point, which a backend is."""
_SHAPES = ("min_shapes", "opt_shapes", "max_shapes")
_LARGEST = 2**40
"""No size, and no number of MiB, is larger."""
_LIBRARY = re.compile(r"plugins of (.*), \d+", re.S)
_SCRIPT = re.compile(r"\w+\(\) of (.*), \d+", re.S)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSettings:
    """What flags ask for: a backend, None for that of the run, and settings.

    Of the settings, those that `flagged` names were given; a run tells the others.
    """

    backend: str | None
    settings: EngineSettings
    flagged: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AsRun:
    """What to build with. `unlike` names what flags ask for otherwise than the run had it."""

    backend: str
    settings: EngineSettings
    unlike: tuple[str, ...]


def engine_as_in_run(finished: Finished, asked: AskedSettings) -> AsRun:
    """Return backend and settings as the run had them, except for what flags ask for.

    After a forecast the backend is `auto`. Raises RunFolderError for what no run has
    written, and UsageError where the run had a file that is not given.
    """
    ran = _backend(finished)
    had = _settings(finished)
    names = set(asked.flagged).difference(NOT_TOLD)
    shapes = names.intersection(_SHAPES)
    given = {name: getattr(asked.settings, name) for name in (*names, *(shapes and _SHAPES))}
    files = {name: getattr(asked.settings, name) for name in NOT_TOLD}
    unlike = sorted(name for name, value in given.items() if value != getattr(had, name))
    _check_files(finished, asked.settings)
    if ran != "auto":
        unlike = ["backend"] * (asked.backend not in (None, ran, "auto")) + unlike
    return AsRun(
        backend=asked.backend or ran,
        settings=replace(had, **given, **files),
        unlike=tuple(unlike) if ran != "auto" else (),
    )


def _backend(finished: Finished) -> str:
    """Return what built the run's engines, "auto" where it built none."""
    name = finished.fingerprint.get("backend", "emulated")
    if name == "emulated":
        return "auto"
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise damaged(finished.path, f"its fingerprint.backend is {quoted(name)}")
    return name


def _settings(finished: Finished) -> EngineSettings:
    """Return the settings of the run's engines; `auto` is what it was in the run."""
    typing = _versions(finished).get("typing")
    if typing not in (None, "strong", "weak"):
        raise damaged(finished.path, f"its fingerprint.versions.typing is {quoted(typing)}")
    told = finished.fingerprint.get("engine", {})
    if isinstance(told, dict):
        told = {key: value for key, value in told.items() if key not in NOT_TOLD}
    try:
        had = typed(EngineSettings, told)
        _check_sizes(had)
    except ValueError as error:
        raise damaged(finished.path, f"fingerprint.engine: {error}") from error
    except UsageError as error:
        raise damaged(finished.path, error.message) from error
    return replace(had, typing=typing) if typing and had.typing == "auto" else had


def _versions(finished: Finished) -> Mapping[str, Any]:
    versions = finished.fingerprint.get("versions", {})
    if not isinstance(versions, dict):
        raise damaged(finished.path, f"its fingerprint.versions is {quoted(versions)}")
    return versions


def _check_files(finished: Finished, settings: EngineSettings) -> None:
    """Raise UsageError where the run's builds had plugins or a script, and these here do not."""
    plugins = {path.name for path in settings.plugins}
    scripts = set()
    if settings.config_script is not None:
        scripts.add(script_and_function(settings.config_script)[0].name)
    for flag_, pattern, given in ((PLUGINS, _LIBRARY, plugins), (CONFIG_SCRIPT, _SCRIPT, scripts)):
        missing = next((name for name in _named(finished, pattern) if name not in given), None)
        if missing is not None:
            raise UsageError(f"the run built with {quoted(missing)}", f"give it by {flag_}")


def _named(finished: Finished, pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the names of the files of a kind that the run's builds had."""
    for key in _versions(finished):
        if found := pattern.fullmatch(key):
            yield found[1]


def _check_sizes(had: EngineSettings) -> None:
    """Raise ValueError for what no library can take."""
    shapes = [shape for name in _SHAPES for shape in getattr(had, name).values()]
    sizes = [size for shape in shapes for size in shape]
    if not all(0 < size < _LARGEST for size in (had.workspace_mib or 1, *sizes)):
        raise ValueError("a size is out of range")
