"""`--until`: the next such time."""

import os
import time
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_bisect.commandline.batch.batch_run import parse_until
from precision_bisect.errors import UsageError

HOUR_S = 3600.0


@pytest.fixture(autouse=True, scope="module")
def berlin() -> Iterator[None]:
    """Set a zone with summer time, by rules that need no database."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "CET-1CEST,M3.5.0,M10.5.0/3"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


def local(text: str) -> float:
    """Return a local date and time in seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("now", "until", "hours"),
    [
        ("2026-06-10T22:00", "06:00", 8),
        ("2026-06-10T05:00", "06:00", 1),
        ("2026-06-10T06:00", "06:00", 24),
        ("2026-06-10T05:00", "6:00", 1),
        ("2026-06-10T22:00", "2026-06-11T06:00", 8),
        ("2026-06-10T22:00", "2026-06-11T06:00+00:00", 10),
        # The night in which clocks go forward is an hour shorter, the other one longer.
        ("2026-03-28T22:00", "06:00", 7),
        ("2026-10-24T22:00", "06:00", 9),
        ("2026-03-28T22:00", "02:30", 4.5),  # skipped, so it is 03:30
        ("2026-10-25T01:00", "02:30", 1.5),  # the first of two
    ],
)
def test_the_next_such_time(now: str, until: str, hours: float) -> None:
    """A time of day is the next one to come, whatever the clocks do that night."""
    begun = local(now)
    assert hours * HOUR_S == pytest.approx(parse_until(until, begun) - begun)


@given(
    now=st.floats(1.5e9, 2.0e9),
    clock=st.times().map(lambda t: t.replace(second=0, microsecond=0)),
)
def test_a_time_of_day_is_ahead_and_near(now: float, clock: object) -> None:
    """It is after now, at most a day and a change of clocks away, and reads as it was written."""
    text = f"{clock:%H:%M}"
    at = parse_until(text, now)
    assert now < at <= now + 26 * HOUR_S
    read = datetime.fromtimestamp(at)
    assert text in (f"{read:%H:%M}", f"{read - timedelta(hours=1):%H:%M}")


@pytest.mark.parametrize(
    "text", ["soon", "25:00", "06:61", "6", "", "2026-13-01", "06:00:00:00", "99999-01-01"]
)
def test_no_time_is_refused(text: str) -> None:
    """What is no time is one line that shows how to write one."""
    with pytest.raises(UsageError, match="cannot read the time") as caught:
        parse_until(text, 0.0)
    assert "write 06:00" in caught.value.hint


def test_a_date_in_the_past_is_refused() -> None:
    """A whole date says which day is meant, so a past one is a mistake."""
    with pytest.raises(UsageError, match="is past"):
        parse_until("2020-01-01T06:00", local("2026-01-01T00:00"))
