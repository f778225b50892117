"""Advice beside its control: the same plan without the change."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from advice_cases import advice_on, case_of, searched, tell
from models import parse, save
from norm_spellings import large, layer_norm
from precision_bisect.explaining.advice.diagnosed_model import UNCHANGED
from precision_bisect.explaining.advice.text import advice_text
from precision_bisect.protocols import Sample
from precision_bisect.trial import Outcome, TrialStatus, Verdict

HARMLESS = (
    "(float[2,4] x) => (float[2,4] y) <float eps = {{1e-12}}, float k = {{{k}}}> "
    "{{ q = Mul(x, x) v = ReduceSum <keepdims = 1> (q) w = Add(v, eps) r = Sqrt(w) n = Div(x, r) "
    "h = Mul(x, k) p = Mul(h, h) s = Sqrt(p) d = Div(s, k) y = Add(n, d) }}"
)
"""An epsilon that nothing needs, as no sum is 0, beside squares that may overflow."""
FEEDS: list[Sample] = [{"x": np.linspace(0.5, 2, 8, dtype=np.float32).reshape(2, 4)}]


@pytest.mark.parametrize("k", [300.0, 1.0], ids=["another layer breaks it", "nothing does"])
def test_a_change_that_the_plan_does_not_need_is_no_advice(tmp_path: Path, k: float) -> None:
    """With these layers kept all holds, whatever epsilon is; without one of them nothing does."""
    path = save(parse(HARMLESS.format(k=k)), tmp_path)
    kept = ["node_of_w", "node_of_r", "node_of_p", "node_of_s"]
    case = case_of(path, FEEDS, kept, tmp_path)
    assert "epsilon" not in {each.id for each in advice_on(case).advice}
    assert "epsilon" not in advice_text(advice_on(case))


@pytest.mark.parametrize("kept", [["node_of_q"], ["node_of_q", "node_of_v", "node_of_h"]])
def test_the_control_is_the_same_plan(tmp_path: Path, kept: list[str]) -> None:
    """It is what the emulator says of the same layers in the model as it is."""
    path = save(parse(layer_norm()), tmp_path)
    case = case_of(path, list(large()), kept, tmp_path)
    tried = tell(case, case.tried(kept, UNCHANGED))
    assert tried is not None and tried.control is not None
    assert replace(tried, control=None) == tried.control
    assert tried.idle == tried.holds
    assert not tried.helps


@pytest.mark.parametrize(("fewer", "kept"), [(True, ["node_of_q"]), (False, ["x", "y", "z"])])
def test_a_fused_plan_that_keeps_no_fewer_is_no_advice(
    fewer: bool, kept: list[str], tmp_path: Path
) -> None:
    """A search of the fused form may end with more layers, of which the file knows but some."""
    path = save(parse(layer_norm()), tmp_path)
    case = case_of(path, list(large()), ["node_of_q", "node_of_v"], tmp_path)
    outcome = Outcome(status=TrialStatus.FINISHED, verdict=Verdict.PASS, error=1e-3)
    case = replace(case, fused=(frozenset(kept), outcome))
    tried = tell(case, case.fused_by_run())
    assert fewer == (tried is not None)
    assert tried is None or "with 1 kept instead of 2 layers: error 0.001" in tried.clause()


def test_whatever_helps_has_a_control_that_does_not_hold(tmp_path: Path) -> None:
    """The figure of each piece of advice stands beside that of the plan without it."""
    _, advice = searched(parse(layer_norm()), large(), tmp_path)
    tried = [each.tried for each in advice.values() if each.tried]
    assert tried
    for each in tried:
        assert each.control is not None and each.control.kept in (0, each.kept)
        assert not each.control.on_samples
