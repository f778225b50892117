"""What is asked of all tensors: shown at once, or told by reductions where they are large."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from effort import examples
from models import load_text
from precision_bisect.explaining.diagnosis import instrument as instruments
from precision_bisect.explaining.diagnosis.instrument import Instrument
from precision_bisect.explaining.diagnosis.watched_tensors import broken_under, watch
from precision_bisect.graphs.ort import Session
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Sample

PAIR = Pair(low="fp16", high="fp32")
# Squares overflow FP16, their difference is NaN there, the logarithm NaN and Inf in FP32, too.
LEAVING = (
    "(float[n] x) => (float[n] y) <float none = {0}> "
    "{ a = Mul(x, x) b = Sub(a, a) c = Mul(a, none) d = Log(x) e = Add(d, a) "
    "m = ReduceMax<keepdims = 0>(a) s = Mul(m, none) f = Add(b, c) g = Add(f, e) y = Add(g, s) }"
)
LONG = 12
VALUES = [0.0, 1.0, -1.0, 3.0, 255.0, 256.0, 300.0, -4e4, 1e20, np.inf, -np.inf, np.nan]


def watched(model: Any, feeds: Sequence[Sample], plan: Plan) -> tuple[Any, Any, Any]:
    """Return what is seen of a model under a plan, and with every layer low."""
    seen = watch(Instrument(model, PAIR, 1), {}, feeds)
    broken = broken_under(Instrument(model, PAIR, 1), feeds, plan)
    return seen.broken, seen.still, broken


@examples(12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    feeds=st.lists(st.lists(st.sampled_from(VALUES), min_size=1, max_size=3), max_size=3).filter(
        len
    ),
    kept=st.sets(st.integers(0, 9)),
)
def test_reductions_tell_what_showing_all_tells(
    feeds: list[list[float]], kept: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where NaN and Inf appear, and what never changes, is the same however large tensors are."""
    model = load_text(LEAVING, tmp_path)
    samples: list[Sample] = [{"x": np.array(feed, np.float32)} for feed in feeds]
    whole = watched(model, samples, Plan.of(kept))
    with monkeypatch.context() as patch:
        patch.setattr(instruments, "AT_ONCE_BYTES", 1)
        assert whole == watched(model, samples, Plan.of(kept))


def test_sound_tensors_take_one_inference_however_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as memory holds at a time cost an inference each: 9 of 15 CPU s on a detector."""
    chain = " ".join(f"t{i + 1} = Neg(t{i})" for i in range(LONG))
    text = f"(float[4] x) => (float[4] y) {{ t0 = Abs(x) {chain} y = Neg(t{LONG}) }}"
    model = load_text(text, tmp_path)
    ran, run = list[Session](), Session.run

    def counting(session: Session, *arguments: Any) -> dict[str, Any]:
        ran.append(session)
        return run(session, *arguments)

    monkeypatch.setattr(Session, "run", counting)
    monkeypatch.setattr(instruments, "AT_ONCE_BYTES", 1)
    feeds: list[Sample] = [{"x": np.full(4, value, np.float32)} for value in (1, 2)]
    instrument = Instrument(model, PAIR, 1)
    assert not broken_under(instrument, feeds, Plan.of(()))
    assert len(feeds) == len(ran)
    ran.clear()
    assert LONG + 2 == len(watch(instrument, {}, feeds).still)
    assert 2 * len(feeds) == len(ran)
