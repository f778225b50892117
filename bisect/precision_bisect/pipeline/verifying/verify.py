"""`precision-bisect verify`: build a found plan once and say what the engine made of it.

How the run built its engines its result tells: untrusted, so checked.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from precision_bisect.backends.backend_plugin import Builder, choose_builder
from precision_bisect.errors import (
    PluginError,
    RefusedError,
    RunFolderError,
    UsageError,
    printable,
)
from precision_bisect.execution.slot import Limits
from precision_bisect.exports.finished import Finished, read_finished
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.ort import use_custom_ops
from precision_bisect.machine.workdir import workdir
from precision_bisect.pipeline.verifying.one_build import OneBuild, Order, build_once
from precision_bisect.runs.locking import RunLock
from precision_bisect.runs.results.run_status import told_of
from precision_bisect.runs.results.saved import damaged, last_run, quoted
from precision_bisect.runs.results.verification import Verification, failure_of, fault_of
from precision_bisect.runs.runfolder import (
    LEDGER,
    LOCK,
    RESULT,
    STATUS,
    VERIFIED,
    VERIFIED_ENGINE,
    VERIFIED_LOG,
    RunFolder,
)
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


def engine_as_in_run(finished: Finished, build_settings: AskedSettings) -> AsRun:
    """Return backend and settings as the run had them, except for what flags ask for.

    After a forecast the backend is `auto`. Raises RunFolderError for what no run has
    written, and UsageError where the run had a file that is not given.
    """
    ran = _backend(finished)
    had = _settings(finished)
    interface_as_in_run(finished, build_settings.settings)
    names = set(build_settings.flagged).difference(NOT_TOLD)
    shapes = names.intersection(_SHAPES)
    values = {
        name: getattr(build_settings.settings, name) for name in (*names, *(shapes and _SHAPES))
    }
    files = {name: getattr(build_settings.settings, name) for name in NOT_TOLD}
    unlike = sorted(name for name, value in values.items() if value != getattr(had, name))
    _check_files(finished, build_settings.settings)
    if ran != "auto":
        unlike = ["backend"] * (build_settings.backend not in (None, ran, "auto")) + unlike
    return AsRun(
        backend=build_settings.backend or ran,
        settings=replace(had, **values, **files),
        unlike=tuple(unlike) if ran != "auto" else (),
    )


def interface_as_in_run(finished: Finished, settings: EngineSettings) -> EngineSettings:
    """Return settings with the interface that the run has judged.

    Raises UsageError where another one is asked for.
    """
    had = _settings(finished).io_types
    if settings.io_types not in ("model", had):
        raise UsageError(
            f"--io-types {settings.io_types} is not what the run has judged: its samples were "
            "not rounded",
            "search again with it",
        )
    return replace(settings, io_types=had)


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
    raw = finished.fingerprint.get("engine", {})
    if isinstance(raw, dict):
        raw = {key: value for key, value in raw.items() if key not in NOT_TOLD}
    try:
        had = typed(EngineSettings, raw)
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
    for flag_, pattern, names in ((PLUGINS, _LIBRARY, plugins), (CONFIG_SCRIPT, _SCRIPT, scripts)):
        missing = next((name for name in _named(finished, pattern) if name not in names), None)
        if missing is not None:
            raise UsageError(f"the run built with {quoted(missing)}", f"give it by {flag_}")


def _named(finished: Finished, pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the names of the files of a kind that the run's builds had."""
    for key in _versions(finished):
        if match := pattern.fullmatch(key):
            yield match[1]


def _check_sizes(had: EngineSettings) -> None:
    """Raise ValueError for what no library can take."""
    shapes = [shape for name in _SHAPES for shape in getattr(had, name).values()]
    sizes = [size for shape in shapes for size in shape]
    if not all(0 < size < _LARGEST for size in (had.workspace_mib or 1, *sizes)):
        raise ValueError("a size is out of range")


BUILD_TIMEOUT_S = 1800.0
MEMORY_SHARE = 0.75
"""What a build may take unless it is told: half an hour, this share of the memory that is free."""
_GRACE_S = 60.0
"""A build that does not end itself this long after its limit, the loading included, is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a build showed, and the run folder in which it is recorded.

    `run` is None where the result lies in no run folder, or cannot be recorded: `trouble` says
    why.
    """

    found: Verification
    run: Path | None = None
    trouble: str = ""


def verify(
    path: Path,
    plan_path: Path | None,
    build_settings: AskedSettings,
    memory_mib: float | None = None,
) -> Verified:
    """Build the plan of a finished run once and look into the engine.

    `path` is the model, or a run folder. What is not asked for is as the run had it. Where the
    build fails, that of every layer in FP32 tells what is at fault. `memory_mib` is what a build
    may take, None for a share of what is free. Raises a PrecisionBisectError for bad input, and
    where nothing here can build engines. A build that fails is a finding, not an error.
    """
    use_custom_ops(build_settings.settings.ort_custom_ops)
    model_path, result = model_and_result(path, plan_path)
    finished = read_finished(result, load_model(model_path))
    chosen = engine_as_in_run(finished, build_settings)
    settings = chosen.settings
    builder = _builder(chosen, finished, told=build_settings.backend is not None)
    if settings.build_timeout_s is None:
        settings = replace(settings, build_timeout_s=BUILD_TIMEOUT_S)
    limits = _limits(settings, memory_mib)
    order = Order(model=model_path, result=finished.path, backend=builder.name, settings=settings)
    with workdir() as work:
        built = build_once(order, limits, work)
        plain = build_once(replace(order, plain=True), limits, work) if built.failure else None
    verification = Verification(
        backend=builder.name,
        remark=builder.remark,
        unlike=chosen.unlike,
        kept=finished.high,
        layers=built.evidence.honours,
        notes=built.evidence.notes,
        listed={listing.note: listing.names for listing in built.evidence.listed},
        failure=failure_of(built.failure),
        fp32_failure=failure_of(plain.failure if plain else None),
        fault=fault_of(built.failure, plain.failure if plain else None),
        engine=built.facts,
    )
    try:
        return Verified(found=verification, run=_record(verification, built, plain, finished))
    except RunFolderError as error:
        return Verified(found=verification, trouble=printable(f"not recorded: {error.message}"))


def _builder(chosen: AsRun, finished: Finished, *, told: bool) -> Builder:
    """Return what builds; of a backend that only the run asks for it is said that it does."""
    try:
        return choose_builder(chosen.backend, chosen.settings, finished.pair.low)
    except (PluginError, RefusedError) as error:
        if told or chosen.backend == "auto":
            raise
        message = f"the run used {chosen.backend}, as verify does: {error.message}"
        raise type(error)(message, "--backend auto takes what can build here") from error


def _limits(settings: EngineSettings, memory_mib: float | None) -> Limits:
    if memory_mib is None:
        memory_mib = MEMORY_SHARE * psutil.virtual_memory().available / 2**20
    assert settings.build_timeout_s is not None
    return Limits(time_s=settings.build_timeout_s + _GRACE_S, memory_mib=memory_mib)


def model_and_result(path: Path, plan_path: Path | None) -> tuple[Path, Path]:
    """Return the model and the result that the arguments name: either, or both.

    Raises UsageError, and RunFolderError for a model without a run.
    """
    if not (os.path.isdir(path) or path.suffix == ".json"):  # noqa: PTH112 - never raises
        return path, plan_path or last_run(path)
    if plan_path is not None:
        raise UsageError(f"{path} is a run, which has its plan", "leave --plan out, or name MODEL")
    run = path.parent if path.suffix == ".json" else path
    return model_of(run, f"name it beside the run: MODEL --plan {run}"), path


def model_of(run: Path, hint: str) -> Path:
    """Return the model of a run: where the run had it, else in its folder or beside that.

    Raises UsageError, with the hint, where it is in none of these places.
    """
    status = told_of(run)
    if status is None:
        raise UsageError(f"{run} does not say which model it is of", hint)
    model_path = Path(status.run.model)
    places = (
        model_path,
        run.parent / model_path,
        run / model_path.name,
        run.parent / model_path.name,
    )
    path = next((place for place in places if os.path.isfile(place)), None)  # noqa: PTH113
    if path is None:
        raise UsageError(f"the model of {run} is not at {model_path} any more", hint)
    return path


def _record(
    verification: Verification, built: OneBuild, plain: OneBuild | None, finished: Finished
) -> Path | None:
    """Write what was found beside the result, where that is a run's. Raises RunFolderError."""
    run = finished.path.parent
    if finished.path.name != RESULT or not any(
        (run / name).exists() for name in (LOCK, LEDGER, STATUS)
    ):
        return None
    log = built.log + (f"\nevery layer in FP32:\n{plain.log}" if plain else "")
    with RunLock(run):
        folder = RunFolder(run)
        folder.write(VERIFIED, verification.to_json())
        folder.write(VERIFIED_ENGINE, built.engine)
        folder.write(VERIFIED_LOG, log)
    return run
