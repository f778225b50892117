"""One place for a child: what it is given, how it ends, and what ends with it."""

import os
import threading
from pathlib import Path

import pytest

from isolation import inside
from patience import LIMIT_S, gone, late_by, wait_until
from precision_bisect.errors import ModelError, RunFolderError
from precision_bisect.execution.evaluator_spec import EvaluatorSpec
from precision_bisect.execution.slot import Death, Limits, Slot
from precision_bisect.machine.stopping import Stopped, until
from precision_bisect.trial import TrialStatus


def test_a_child_has_the_gpu_of_its_slot(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA_VISIBLE_DEVICES is the slot's, or as the driver has it; TMPDIR is its own folder."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    said, work = slot.call_bare(inside.environment, "CUDA_VISIBLE_DEVICES")
    assert ("5", slot.folder / "work") == (said, work)
    assert (str(work), work) == slot.call_bare(inside.environment, "TMPDIR")
    slot.end()
    slot.gpu = "GPU-0a"
    assert ("GPU-0a", work) == slot.call_bare(inside.environment, "CUDA_VISIBLE_DEVICES")
    assert "5" == os.environ["CUDA_VISIBLE_DEVICES"]


def test_a_child_is_used_again_until_it_is_ended(slot: Slot) -> None:
    """Its files go with it, but for the timing cache, which makes the next builds faster."""
    assert slot.pid is None
    slot.call_bare(inside.environment, "HOME")
    first = slot.pid
    slot.call_bare(inside.environment, "HOME")
    assert first is not None and first == slot.pid
    work = slot.folder / "work"
    for name in ("timing.cache", "engine"):
        (work / name).write_text(name)
    (work / "folder").mkdir()
    slot.end()
    assert gone(first) and slot.pid is None
    slot.end()
    slot.call_bare(inside.environment, "HOME")
    assert slot.pid not in (None, first)
    assert ["timing.cache"] == [path.name for path in work.iterdir()]


def test_an_error_for_the_user_comes_through_and_the_child_stays(slot: Slot) -> None:
    """With its hint, as if it had been raised here."""
    with pytest.raises(ModelError) as error:
        slot.call_bare(inside.fail)
    assert ("no model in work", "look elsewhere") == (error.value.message, error.value.hint)
    assert slot.pid is not None


def test_what_a_child_has_started_ends_with_it(
    slot: Slot, spec: EvaluatorSpec, tmp_path: Path
) -> None:
    """Past the time limit both are gone."""
    begun = tmp_path / "begun"
    with late_by(begun.exists), pytest.raises(Death) as death:
        slot.call(Limits(time_s=LIMIT_S), inside.sleep_for_ever, begun)
    assert TrialStatus.TIMED_OUT is death.value.outcome.status
    assert "took longer than 1000 s, and was killed" == death.value.outcome.message
    assert not death.value.retry
    pids = [int(pid) for pid in begun.read_text().split()]
    wait_until(lambda: all(map(gone, pids)))


def test_what_a_lost_child_has_started_ends_with_it(slot: Slot, tmp_path: Path) -> None:
    """Also where the child has not been ended but has died."""
    begun = tmp_path / "begun"

    def kill() -> None:
        wait_until(begun.exists)
        os.kill(int(begun.read_text().split()[0]), 9)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(Death, match="SIGKILL") as death:
        slot.call(Limits(), inside.sleep_for_ever, begun)
    killer.join()
    assert death.value.retry
    wait_until(lambda: gone(int(begun.read_text().split()[1])))


def test_the_log_is_about_one_call(slot: Slot) -> None:
    """What was printed during the call before is not in it."""
    with pytest.raises(Death, match="SIGABRT"):
        slot.call(Limits(), inside.print_much, 1)
    assert b"much is said\nthe last words\n" in slot.log.read_bytes()
    with pytest.raises(Death, match="SIGABRT"):
        slot.call(Limits(), inside.print_much, 0)
    assert slot.log.read_bytes().startswith(b"the last words\n")


def test_no_room_for_the_childs_files_is_an_error_for_the_user(
    spec: EvaluatorSpec, tmp_path: Path
) -> None:
    """It says what to do."""
    (tmp_path / "file").write_text("in the way")
    slot = Slot(spec=tmp_path / "spec", folder=tmp_path / "file" / "slot")
    with pytest.raises(RunFolderError, match="Not a directory"):
        slot.call_bare(inside.environment, "HOME")


def test_a_spec_whose_model_has_changed_is_refused(slot: Slot, spec: EvaluatorSpec) -> None:
    """Verdicts of two models would be mixed; the same is said again on the next call."""
    model = spec.options.model
    model.write_bytes(model.read_bytes().replace(b"n0_Tanh", b"n0_Than"))
    for _ in range(2):
        with pytest.raises(ModelError, match="has changed since the run began"):
            slot.call(Limits(), inside.print_much, 0)


def test_a_time_that_ends_names_the_hosts_that_a_child_calls(slot: Slot, tmp_path: Path) -> None:
    """One that hangs takes all of --max-time: whoever reads of its end learns where."""
    slot.hosts, begun = "host one", tmp_path / "begun"
    named = r"^the time was up, waiting for host one$"
    with until(begun.exists), pytest.raises(Stopped, match=named):
        slot.call(Limits(), inside.sleep_for_ever, begun)
