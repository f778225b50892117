"""What a backend says of itself in a child, and when there is one at all."""

import os
import signal
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from faults import subject
from patience import wait_until
from precision_bisect.backends.backend_plugin import pick_backend
from precision_bisect.errors import PluginError
from precision_bisect.execution import child
from precision_bisect.execution.evaluator_spec import EvaluatorSpec, survey
from precision_bisect.execution.local_executor import LOCAL, isolated
from precision_bisect.execution.slot import Limits, Slot
from precision_bisect.graphs.load import load_model
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.trial import Proposal

LOWEST = Proposal(plan=Plan.of(()))


def children(folder: Path) -> list[str]:
    """Return the processes of a folder's runs that are children."""
    return [each for each in subject.processes(folder) if "LokyProcess" in each]


def test_a_child_says_the_same_of_its_backend(
    spec: EvaluatorSpec, slot: Slot, tmp_path: Path
) -> None:
    """Name, versions and what cannot run low."""
    asked = slot.surveyed(spec)
    assert survey(spec.made(tmp_path).backend) == asked
    assert ("emulated", True, {}) == (asked.name, asked.emulated, asked.unbuildable())
    assert {} != asked.versions()


@pytest.mark.parametrize("stuck", [(), subject.KEPT])
def test_the_child_that_was_asked_evaluates(
    spec: EvaluatorSpec, slot: Slot, tmp_path: Path, stuck: Sequence[str]
) -> None:
    """By the table that came of it: a layer that cannot run low is no candidate any more."""
    slot.surveyed(spec)
    asked = slot.pid
    reasons = {LayerName(name): "it has no kernel" for name in stuck}
    settled = replace(spec, table=spec.table.pinned(reasons))
    settled.save(slot.spec)
    told = slot.call(Limits(), child.evaluate_here, LOWEST)
    assert (asked, settled.evaluator(tmp_path)(LOWEST)) == (slot.pid, told)
    assert told.passed is bool(stuck)


def test_a_search_has_one_child_from_question_to_trials(folder: Path) -> None:
    """All that it evaluates is evaluated by the process that was asked about the backend."""
    subject.break_start(
        folder,
        "import os, pathlib\n"
        "with pathlib.Path(__file__).with_name('started').open('a') as stream:\n"
        "    stream.write(f'{os.getpid()} ')\n",
    )
    subject.search(folder)
    started = {int(pid) for pid in (folder / "started").read_text().split()}
    judged = {pid for _, _, pid in subject.noted(folder)}
    assert 1 == len(judged) and judged < started
    assert 2 == len(started)  # this process, too, has loaded the script
    assert [] == subject.left_over(folder)


def test_what_there_is_to_choose_from_is_looked_at_in_the_child(
    spec: EvaluatorSpec, folder: Path
) -> None:
    """Of the name that it finds, it is the child that is asked further."""
    model = load_model(spec.options.model)
    open_choice = replace(spec, options=replace(spec.options, backend="auto", isolate="always"))
    work = folder / "temp" / "work"
    work.mkdir()
    with LOCAL.opened(open_choice.options, work) as executor:
        placed = executor.place(open_choice, model, work)
        assert 1 == len(children(folder))
    assert pick_backend(open_choice.options) == (placed.name, placed.why)
    assert placed.here is None and placed.why


@pytest.mark.parametrize("opened", [True, False])
def test_a_child_that_nobody_has_evaluate_is_ended(
    spec: EvaluatorSpec, folder: Path, tmp_path: Path, *, opened: bool
) -> None:
    """With the executor that asked it, or at once where that was not opened for a run."""
    model = load_model(spec.options.model)
    asked = replace(spec, options=replace(spec.options, isolate="always"))
    work = folder / "temp" / "work"
    work.mkdir()
    with LOCAL.opened(asked.options, work) if opened else nullcontext(LOCAL) as executor:
        executor.place(asked, model, work)
        assert int(opened) == len(children(folder))
    assert [] == children(folder)


def test_a_child_begins_before_it_is_asked(spec: EvaluatorSpec, folder: Path) -> None:
    """It is there as soon as the executor is open, and dying then is told when it is asked."""
    model = load_model(spec.options.model)
    asked = replace(spec, options=replace(spec.options, isolate="always"))
    work = folder / "temp" / "work"
    work.mkdir()
    with LOCAL.opened(asked.options, work) as executor:
        wait_until(lambda: children(folder))
        (running,) = children(folder)
        os.kill(int(running.split()[0]), signal.SIGKILL)
        with pytest.raises(PluginError, match="its process ended by SIGKILL"):
            executor.place(asked, model, work)
        assert "emulated" == executor.place(asked, model, work).name


def test_a_backend_that_costs_its_process_cannot_be_used(
    spec: EvaluatorSpec, folder: Path, slot: Slot
) -> None:
    """One line says so, and what to ask next; nothing is left."""
    subject.break_start(folder, "import os; os.abort()")
    with pytest.raises(PluginError) as error:
        slot.surveyed(spec)
    said = error.value.one_line()
    assert said.startswith("emulated cannot be used: its process ended by SIGABRT (Aborted)")
    assert said.endswith("; `precision-bisect doctor` says what works here")
    assert slot.pid is None
    assert [] == subject.left_over(folder)


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
