"""What costs time and memory is not there before a run needs it."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import tiny
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.model.ort import ON_CPU, Providers
from precision_bisect.options import Options
from precision_bisect.pipeline.prepare import prepare
from precision_bisect.pipeline.run import run_prepared
from precision_bisect.plan import Plan
from precision_bisect.results.endings import Status
from precision_bisect.run_folder.runfolder import RunFolder
from precision_bisect.search.budget import Budget
from precision_bisect.search.events import ignore


class Engines(EmulatedBackend):
    """The emulator in the place of a backend that builds engines."""

    name = "engines"
    emulated = False


@pytest.mark.parametrize("tol", [10.0, 1e-2])
def test_nothing_to_keep_needs_no_forecast(tol: float, tmp_path: Path) -> None:
    """Neither the emulator nor what leaves the low type's range, from the start to the files."""
    asked: list[str] = []

    def opened() -> Providers:
        asked.append("emulator")
        return ON_CPU

    def looked() -> Plan | None:
        asked.append("range")
        return prepared.leaving()

    path = tiny.write_model(tmp_path / "tiny.onnx")
    options = Options(model=path, inputs=tiny.samples(), tol=tol, threads=1, backend="emulated")
    prepared = prepare(replace(options, out=tmp_path / "run"), ignore, tmp_path)
    made = partial(EmulatedBackend, prepared.model, threads=1)
    engines = Engines(prepared.model, threads=1)
    run = replace(
        prepared,
        backend=engines,
        here=engines,
        emulator=made(providers=opened, late=True),
        leaving=looked,
    )
    result = run_prepared(run, ignore, Budget(), RunFolder(run.options.folder))
    expected = (
        (Status.NOTHING_TO_KEEP, set()) if tol > 1 else (Status.FOUND, {"emulator", "range"})
    )
    assert expected == (result.status, {*asked})
    assert [str(name) for name in result.kept] == ([] if tol > 1 else tiny.KEPT)
