"""`precision-bisect verify`: build a found plan once and say what the engine made of it.

What is not asked for is as the run had it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from precision_bisect.backends.backend_plugin import Builder, choose_builder
from precision_bisect.errors import PluginError, RefusedError, RunFolderError, printable
from precision_bisect.execution.slot import Limits
from precision_bisect.exports.finished import Finished
from precision_bisect.machine.workdir import workdir
from precision_bisect.pipeline.reopening import Reopened, reopen
from precision_bisect.pipeline.verifying.one_build import OneBuild, Order, build_once
from precision_bisect.runs.locking import RunLock
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
from precision_bisect.settings.engine_settings import EngineSettings

BUILD_TIMEOUT_S = 1800.0
MEMORY_SHARE = 0.75
"""What a build may take unless it is told: half an hour, this share of the memory that is free."""
# A build that does not end itself this long after its limit, the loading included, is ended.
_GRACE_S = 60.0


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
    flags: Mapping[str, Any],
    backend: str | None = None,
    memory_mib: float | None = None,
) -> Verified:
    """Build the plan of a finished run once and look into the engine.

    `path` is the model, or a run folder. `flags` are settings of engines by name, and `backend`
    what builds them: what is not asked for is as the run had it. Where the build fails, that of
    every layer in FP32 tells what is at fault. `memory_mib` is what a build may take, None for a
    share of what is free. Raises a PrecisionBisectError for bad input, and where nothing here can
    build engines. A build that fails is a finding, not an error.
    """
    run = reopen(path, plan_path, flags)
    run.check_code()
    finished, settings = run.finished, run.options.engine
    builder = _builder(run, backend)
    if settings.build_timeout_s is None:
        settings = replace(settings, build_timeout_s=BUILD_TIMEOUT_S)
    limits = _limits(settings, memory_mib)
    order = Order(
        model=run.model.path, result=finished.path, backend=builder.name, settings=settings
    )
    with workdir() as work:
        built = build_once(order, limits, work)
        # FP32 fails, too, where the model or the machine is at fault, not the plan.
        plain = build_once(replace(order, plain=True), limits, work) if built.failure else None
    verification = Verification(
        backend=builder.name,
        remark=builder.remark,
        unlike=_unlike(run, backend),
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


def _unlike(run: Reopened, backend: str | None) -> tuple[str, ...]:
    """Return what flags ask for otherwise than the run had it; a forecast has built nothing."""
    ran = run.finished.backend
    if ran == "auto":
        return ()
    return (*["backend"] * (backend not in (None, ran, "auto")), *run.unlike)


def _builder(run: Reopened, backend: str | None) -> Builder:
    """Return what builds; of a backend that only the run asks for it is said that it does."""
    ran = run.finished.backend
    try:
        return choose_builder(backend or ran, run.options.engine, run.finished.pair.low)
    except (PluginError, RefusedError) as error:
        if backend is not None or ran == "auto":
            raise
        message = f"the run used {printable(ran)}, as verify does: {error.message}"
        raise type(error)(message, "--backend auto takes what can build here") from error


def _limits(settings: EngineSettings, memory_mib: float | None) -> Limits:
    if memory_mib is None:
        memory_mib = MEMORY_SHARE * psutil.virtual_memory().available / 2**20
    assert settings.build_timeout_s is not None
    return Limits(time_s=settings.build_timeout_s + _GRACE_S, memory_mib=memory_mib)


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
