"""What a backend says of itself in a child, and when there is one at all."""

from pathlib import Path
from typing import Any

import pytest

from faults import subject
from precision_bisect.errors import PluginError
from precision_bisect.isolation.described import survey
from precision_bisect.isolation.evaluator_spec import EvaluatorSpec
from precision_bisect.isolation.survey import isolated, surveyed

ALWAYS: dict[str, Any] = {"isolate": "always"}


def test_a_child_says_the_same_of_its_backend(spec: EvaluatorSpec, tmp_path: Path) -> None:
    """Name, versions and what cannot run low; nothing is left."""
    asked = surveyed(spec, tmp_path)
    assert survey(spec.backend(tmp_path)) == asked
    assert ("emulated", True, {}) == (asked.name, asked.emulated, asked.unbuildable())
    assert {} != asked.versions()
    assert [] == subject.left_over(tmp_path / "subject")


def test_a_backend_that_costs_its_process_cannot_be_used(
    spec: EvaluatorSpec, folder: Path, tmp_path: Path
) -> None:
    """One line says so, and what to ask next."""
    subject.break_start(folder, "import os; os.abort()")
    with pytest.raises(PluginError) as error:
        surveyed(spec, tmp_path)
    assert (
        "emulated cannot be used: its process died of SIGABRT (Aborted); "
        "`precision-bisect doctor` says what works here"
    ) == error.value.one_line()


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"isolate": "auto"}, False),
        ({"isolate": "auto", "backend": "tensorrt-rtx"}, True),
        ({"isolate": "auto", "trial_timeout_s": 9.0}, True),
        ({"isolate": "auto", "trial_memory_mib": 900.0}, True),
        ({"isolate": "always"}, True),
        ({"isolate": "never", "backend": "tensorrt-rtx"}, False),
    ],
)
def test_children_are_for_builds_and_limits(
    folder: Path, asked: dict[str, Any], expected: bool
) -> None:
    """Unless it is said otherwise: an emulated trial takes less than handing it over."""
    assert expected is isolated(subject.options(folder, **asked))
