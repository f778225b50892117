"""Which plan the verdict of a target says to deploy."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_bisect.runs.results.on_target import OnTarget, PointOnTarget, TargetStatus

NAMES = ("answer", "fp32", "all_low", "margin")
POINTS = st.tuples(
    *(
        st.builds(
            PointOnTarget,
            point=st.just(name),
            kept=st.just(1),
            samples=st.sampled_from([3, 4]),
            passed=st.booleans(),
            latency_ms=st.none() | st.sampled_from([1.0, 1.5, 2.0, 5.0]),
            latency_spread_ms=st.none() | st.sampled_from([0.0, 0.6]),
        )
        for name in NAMES
    )
)
ANSWER = PointOnTarget(point="answer", kept=1, samples=4, passed=True, latency_ms=2.0)


@given(points=POINTS)
def test_what_is_to_be_deployed_holds_and_is_the_fastest(
    points: tuple[PointOnTarget, ...],
) -> None:
    """Nothing that holds is faster by more than the times spread, and nothing else is named."""
    found = OnTarget(samples=4, kept=(), points=points)
    verdict = found.verdict
    timed = [p for p in points if p.holds(4) and p.latency_ms is not None]
    named = [p for p in timed if f"deploy {p.point}/" in verdict]
    named += [p for p in timed if p.point == "fp32" and "deploy the model itself" in verdict]
    assert ("deploy" in verdict) == bool(named)
    answer = points[0]
    if found.exit_code or answer.latency_ms is None:
        assert not named
        return
    best = named[0] if named else answer
    assert found.fastest is (best if named else None)
    spread = max(p.latency_spread_ms or 0.0 for p in timed)
    assert all((best.latency_ms or 0.0) <= (p.latency_ms or 0.0) + spread for p in timed)


@pytest.mark.parametrize(
    ("name", "words"),
    [("fp32", "deploy the model itself"), ("margin", "deploy margin/model.mixed.onnx")],
)
def test_fp32_is_the_model_itself(name: str, words: str) -> None:
    """Any other plan is a file of its own."""
    faster = replace(ANSWER, point=name, latency_ms=1.0)
    verdict = OnTarget(samples=4, kept=(), points=[ANSWER, faster]).verdict
    assert words in verdict and 1 == verdict.count("deploy ")


@pytest.mark.parametrize("control", [None, 3, 4])
def test_a_control_that_is_missing_is_said(control: int | None) -> None:
    """The answer holds, and whether the comparison itself is right there is open."""
    fp32 = replace(ANSWER, point="fp32", latency_ms=5.0)
    judged = {"passed": None, "samples": 0} if control is None else {"samples": control}
    found = OnTarget(samples=4, kept=(), points=[ANSWER, replace(fp32, **judged)])
    assert TargetStatus.HOLDS is found.status
    words = {None: "FP32 has not come back", 3: "FP32 was judged on fewer samples"}
    assert [control] == ([key for key, text in words.items() if text in found.verdict] or [4])
