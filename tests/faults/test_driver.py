"""A driver that is killed anywhere, with its trials in child processes, and goes on."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from effort import nightly
from faults import subject
from lives import Live, lives

Life: TypeAlias = tuple[str, int]
"""What a driver dies of, and the how manieth of that: see `subject.Death`. In `evaluation` it is
killed from the child that evaluates."""

LIVES: Mapping[tuple[str, int], Sequence[Life]] = {
    ("thrice", 2): (("intent", 2), ("evaluation", 2), ("verdict", 2)),
    ("ten times", 1): (
        *(("start", 1), ("intent", 2), ("evaluation", 2), ("evaluated", 2), ("verdict", 2)),
        *(("commit", 2), ("intent", 3), ("evaluation", 2), ("file", 2), ("file", 6)),
    ),
    ("ten times", 2): (
        *(("intent", 1), ("evaluation", 1), ("evaluated", 2), ("verdict", 2), ("commit", 2)),
        *(("intent", 3), ("evaluation", 2), ("file", 1), ("file", 4), ("file", 5)),
    ),
}
"""How often, and for how many workers. No trial is cut off three times, which would be taken for
its own doing."""
TO_THE_END = ("never", 0)


@dataclass(slots=True, kw_only=True)
class Course:
    """What became of a run over several lives: endings, and trials lost and repeated."""

    folder: Path
    codes: list[int]
    lost: int = 0
    repeated: int = 0

    @classmethod
    def of(cls, folder: Path, deaths: Sequence[Life], workers: int) -> "Course":
        """Have drivers go on with a run until each dies, and one to the end."""
        course = cls(folder=subject.prepare(folder), codes=[])
        with lives("faults.subject") as live:
            for life in (*deaths, TO_THE_END):
                before, known = subject.rows(folder), len(subject.noted(folder))
                course.codes.append(one_life(live, folder, life, workers))
                after, fresh = subject.rows(folder), subject.noted(folder)[known:]
                course.lost += sum(after.get(trial) != about for trial, about in before.items())
                course.repeated += sum(
                    what == "begun" and trial in before for what, trial, _ in fresh
                )
        return course


def one_life(live: Live, folder: Path, life: Life, workers: int) -> int:
    """Have a driver go on with the run until it dies; return its exit code."""
    what, nth = life
    begun = sum(kind == "begun" for kind, *_ in subject.noted(folder))
    dying = [{"do": "kill the driver", "call": begun + nth}] if what == "evaluation" else []
    subject.order(folder, *dying)
    temp = {"TMPDIR": str(folder / "temp")}
    return live(folder, what, nth, workers, said=folder / "said.txt", environment=temp)


def answer(folder: Path) -> dict[str, Any]:
    """Return the result without what depends on the clock."""
    found: dict[str, Any] = json.loads((folder / "run" / "result.json").read_text())
    del found["wall_s"]
    return found


@pytest.mark.parametrize(
    ("often", "workers"),
    [
        next(iter(LIVES)),
        *nightly(*[*LIVES][1:]),
    ],
)
def test_a_driver_that_is_killed_loses_and_repeats_nothing(
    tmp_path: Path, often: str, workers: int, record_property: Callable[[str, object], None]
) -> None:
    """SIGKILL at points of a run changes neither its answer nor any trial that has ended."""
    whole = subject.prepare(tmp_path / "whole")
    subject.search(whole, isolate="never", workers=workers)
    deaths = LIVES[often, workers]
    course = Course.of(tmp_path / "broken", deaths, workers)
    assert [*[-9] * len(deaths), 0] == course.codes
    wrong = int(answer(whole) != answer(course.folder))
    record_property("faults", ("the driver", len(deaths), course.lost, course.repeated, wrong))
    assert (0, 0, 0) == (course.lost, course.repeated, wrong)
    assert subject.KEPT == answer(course.folder)["kept"]
    assert subject.rows(whole) == subject.rows(course.folder)
    assert [] == subject.left_over(course.folder)
    assert [] == list((course.folder / "run").glob(".*.????????"))
