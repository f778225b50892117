"""The limit of forecasts after an engine's failure."""

from hypothesis import given
from hypothesis import strategies as st

from precision_bisect.search.speed.forecast import ForecastLimit
from precision_bisect.trial import Outcome, TrialStatus, Verdict


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_stricter_of_two_limits_counts(one: float, other: float) -> None:
    """Else a plan that the engine has refused would be asked for again, a little changed."""
    both = ForecastLimit(limit=one), ForecastLimit(limit=other)
    assert min(one, other) == both[0].stricter(both[1]).limit == both[1].stricter(both[0]).limit


def test_without_figures_the_emulators_verdict_counts() -> None:
    """A check that passes or fails has no limit to make stricter."""
    none = ForecastLimit(limit=None)
    passed = Outcome(status=TrialStatus.FINISHED, verdict=Verdict.PASS)
    failed = Outcome(status=TrialStatus.FINISHED, verdict=Verdict.FAIL)
    assert none.stricter(none).passes(passed) and not none.stricter(none).passes(failed)
