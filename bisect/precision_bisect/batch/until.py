"""`--until`: when the time is up, and what each job may have of it."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from datetime import time as Clock

from precision_bisect.errors import UsageError

RESERVE = 0.05
"""Share of the whole time that no job is promised: loading and exports are in no --max-time."""
MOST_RESERVE_S = 300.0
LEAST_SHARE_S = 1.0
"""A job that would get less is not started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """When a batch must have ended, in seconds since the epoch.

    Wall-clock time counts: a machine that slept has lost the time. Without `at` there is no end.
    """

    at: float | None = None
    reserve_s: float = 0.0
    clock: Callable[[], float] = time.time

    @classmethod
    def of(cls, at: float | None, clock: Callable[[], float] = time.time) -> "Deadline":
        """Return the deadline of a batch that begins now."""
        if at is None:
            return cls(clock=clock)
        reserve_s = min(MOST_RESERVE_S, RESERVE * max(0.0, at - clock()))
        return cls(at=at, reserve_s=reserve_s, clock=clock)

    def share_s(self, jobs_left: int) -> float | None:
        """Return the seconds for the next of so many jobs, None for no limit.

        It is an equal part of what is left now, so what one job does not use goes to the others.
        """
        if self.at is None:
            return None
        left_s = (self.at - self.reserve_s - self.clock()) / jobs_left
        return left_s if left_s >= LEAST_SHARE_S else 0.0

    def left_s(self) -> float | None:
        """Return the seconds until the end, reserve included; None for no limit."""
        return None if self.at is None else max(0.0, self.at - self.clock())


def parse_until(text: str, now: float) -> float:
    """Return when `06:00`, the next such local time after `now`, or an ISO date-time is.

    Both are seconds since the epoch. A time that a change of clocks skips is as much later as the
    change; one that comes twice is the next of both. Raises UsageError.
    """
    if match := re.fullmatch(r"(\d{1,2}):(\d{2})", text):
        try:
            return _next(Clock(int(match[1]), int(match[2])), now)
        except ValueError as error:
            raise _unreadable(text) from error
    try:
        at = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise _unreadable(text) from error
    if at <= now:
        raise UsageError(f"--until {text} is past", "give a time to come")
    return at


def _next(clock: Clock, now: float) -> float:
    today = datetime.fromtimestamp(now).date()
    days = (today, today + timedelta(days=1))
    times = [datetime.combine(day, clock.replace(fold=fold)) for day in days for fold in (0, 1)]
    # In a gap, fold 1 is the earlier reading: a time before the change that nobody asked for.
    read = [each.timestamp() for each in times if each.fold == 0 or _comes_twice(each)]
    return min(at for at in read if at > now)


def _comes_twice(local: datetime) -> bool:
    return local.timestamp() > local.replace(fold=0).timestamp()


def _unreadable(text: str) -> UsageError:
    return UsageError(
        f"cannot read the time {text!r}", "write 06:00, or a date and time as 2030-01-31T06:00"
    )
