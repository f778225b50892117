"""The contract of backends: ours and one from elsewhere keep it, and it finds who does not."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.graphs.load import Model
from precision_bisect.plan import Plan
from precision_bisect.protocols import Engine
from precision_bisect.runs.results.saved import read_saved
from precision_bisect.testing.backend_contract import check_backend
from precision_bisect.testing.driving import ContractError
from simulated import Unversioned
from tiny import KEPT, write_with_samples

REPO = Path(__file__).parents[2]
EXAMPLE = REPO / "examples/reference_backend"
PAGE = (REPO / "docs" / "backends.md").read_text(encoding="utf-8")
(TEST,) = re.findall(r"```python\n(from .*?)```", PAGE, re.DOTALL)


def emulator(model: Model) -> EmulatedBackend:
    """Return the emulator of a model."""
    return EmulatedBackend(model, "fp16", 1)


def test_the_emulator_keeps_the_contract() -> None:
    """The emulator computes what it is asked."""
    check_backend(emulator)


def test_the_example_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend of one file computes what it is asked, by the test of the page as it stands."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    scope: dict[str, Any] = {}
    exec(TEST, scope)
    scope["test_contract"](tmp_path)


class Deaf(Unversioned):
    """A backend that computes every plan in FP32."""

    name = "deaf"

    def __init__(self, model: Model) -> None:
        self._inner = emulator(model)
        self._all = Plan.of(range(len(model.table.candidates)))

    def build(self, plan: Plan, *, afresh: bool = False) -> Engine:
        """Build the plan that keeps every layer."""
        return self._inner.build(self._all)


def test_a_backend_that_does_not_listen_is_found_out() -> None:
    """A backend that computes in FP32 whatever the plan says does not pass."""
    with pytest.raises(ContractError, match="does not overflow"):
        check_backend(Deaf)


def test_a_backend_from_elsewhere_judges_a_network(tmp_path: Path) -> None:
    """It finds the layers that overflow in FP16, and builds for `verify` while it is installed."""
    site = tmp_path / "site" / "onnx_reference-1.0.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: onnx-reference\nVersion: 1.0\n")
    (site / "entry_points.txt").write_text(
        "[precision_bisect.backends]\nonnx-reference = onnx_reference:PLUGIN\n"
    )
    model = write_with_samples(tmp_path)
    out = tmp_path / "run"
    command = [sys.executable, "-m", "precision_bisect", str(model), "--tol", "1e-2"]
    command += ["--inputs", str(tmp_path / "inputs.npz"), "--backend", "onnx-reference"]
    command += ["--copies", "2"]
    path = os.pathsep.join((str(EXAMPLE), str(site.parent), os.environ.get("PYTHONPATH", "")))
    ran = subprocess.run(
        [*command, "--out", str(out)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert 0 == ran.returncode, ran.stderr
    result = read_saved(out).result
    assert ("onnx-reference", False) == (result.backend, result.emulated)
    assert set(KEPT) >= set(result.kept) != set()
    assert np.isfinite(result.error or np.nan)
    _verified(out, {**os.environ, "PYTHONPATH": path}, 5, "Not observable: the engine does not")
    gone = "the run used onnx-reference, as verify does: there is no backend 'onnx-reference'; "
    _verified(out, dict(os.environ), 2, f"precision-bisect: {gone}--backend auto takes what")


def _verified(run: Path, environment: dict[str, str], code: int, said: str) -> None:
    """Fail unless `verify` ends with this code, and says so."""
    command = [sys.executable, "-m", "precision_bisect", "verify", str(run)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (code, said) == (ran.returncode, (ran.stdout + ran.stderr)[: len(said)])
