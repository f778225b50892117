"""Judging, and running by Polygraphy, import no torch, which somebody else may want later."""

import subprocess
import sys
from pathlib import Path

JUDGE = """
import sys

import numpy as np

from precision_bisect.judging.comparators.polygraphy_plugin import PolygraphyComparator
from precision_bisect.judging.comparators.polygraphy_plugin import Tolerance
from precision_bisect.machine.polygraphy_quiet import without_torch

limit = Tolerance(default=1.0)
for metric in ("elementwise", "max", "l2"):
    judge = PolygraphyComparator(metric=metric, atol=limit, rtol=limit, outputs=("y",)).judge
    some = [{"y": np.ones(3, np.float32)}]
    assert judge(some, some).verdict == "pass"
    assert "torch" not in sys.modules

with without_torch(), without_torch():
    try:
        import torch
    except ImportError:
        print("hidden")
import torch

with without_torch():
    assert sys.modules["torch"] is torch
assert sys.modules["torch"] is torch
"""


def test_judging_does_not_import_torch(tmp_path: Path) -> None:
    """With a torch on the path that tells of its import, only the one after the judging does."""
    (tmp_path / "torch.py").write_text("print('imported')\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{JUDGE}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ["hidden", "imported"] == ran.stdout.split()
