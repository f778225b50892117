"""The page of symptoms: every row is a model, what it prints is shown, and its cause is right."""

import json
import re
from pathlib import Path

import pytest

from make_symptoms import KINDS, PAGE, RUN, Kind, page


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run every kind and recipe; return the folder of them, and the page."""
    work = tmp_path_factory.mktemp("symptoms")
    return work, page(work)


def test_the_page_is_what_the_commands_print(made: tuple[Path, str]) -> None:
    """`python docs/make_symptoms.py` writes it; digits of errors differ between processors."""
    here, there = (
        re.sub(r"error [\d.e-]+( to [\d.e-]+)?", "error", text)
        for text in (PAGE.read_text(encoding="utf-8"), made[1])
    )
    assert here == there


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.symptom)
def test_the_cause_is_that_of_the_row(kind: Kind, made: tuple[Path, str]) -> None:
    """The run ends as the row says, for its causes; the first advice that passes is its own."""
    run = made[0] / kind.symptom / RUN
    if kind.status is None:
        assert not run.exists()
        return
    result = json.loads((run / "result.json").read_text())
    assert kind.status == result["status"]
    assert kind.causes == {each["cause"] for each in result["diagnosis"]}
    helping = [each["id"] for each in result["advice"] if each["passed"]]
    assert [kind.advice] * bool(kind.advice) == helping[:1]
