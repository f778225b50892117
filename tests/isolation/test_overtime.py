"""A run ends soon after its time, whatever it is at: each inference looks at the clock."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from effort import nightly
from precision_bisect.graphs import ort
from precision_bisect.options import Options
from precision_bisect.pipeline.prepare import prepare
from precision_bisect.pipeline.run import run_prepared
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.runs.runfolder import RunFolder
from precision_bisect.search.budget import OVERTIME, OVERTIME_S, Budget


@dataclass
class Inferences:
    """A clock that an inference of ONNX Runtime advances by one second, and nothing else."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds

    def counting(self, patch: pytest.MonkeyPatch) -> None:
        """Count every run of a session, which still takes place."""
        for name in ("run", "run_values"):
            own = getattr(ort.Session, name)

            def counted(session: Any, given: Mapping[str, Any], *more: Any, own: Any = own) -> Any:
                outputs = own(session, given, *more)
                self.seconds += 1
                return outputs

            patch.setattr(ort.Session, name, counted)


def took(folder: Path, patch: pytest.MonkeyPatch, most_s: float | None) -> float:
    """Return the seconds that a run of the small model takes, an inference being one."""
    rng = np.random.default_rng(3)
    feeds = [{"x": rng.normal(1, 0.3, (1, 8)).astype(np.float32)} for _ in range(6)]
    path = tiny.write_model(folder / "tiny.onnx")
    options = Options(
        model=path, inputs=feeds, tol=1e-2, out=folder / "run", threads=1, max_time_s=most_s
    )
    work = folder / "work"
    work.mkdir()
    prepared = prepare(options, ignore, work)
    clock = Inferences()
    clock.counting(patch)
    run_prepared(
        prepared, ignore, Budget(max_time_s=most_s, clock=clock), RunFolder(options.folder)
    )
    return clock.seconds


SHARES = (0.05, 0.1, 0.3, 0.4, 0.5, 0.7, 0.9, 0.97)


@pytest.mark.parametrize("share", [0.8, *nightly(*SHARES)])
def test_no_phase_goes_on_past_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """Ranking, copies, advice, other targets and causes: wherever the time ends, so does all."""
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    with monkeypatch.context() as patch:
        whole = took(tmp_path / "whole", patch, None)
    most_s = float(int(share * whole))
    with monkeypatch.context() as patch:
        seconds = took(tmp_path / "cut", patch, most_s)
    assert seconds <= (1 + OVERTIME) * most_s + OVERTIME_S + 1
