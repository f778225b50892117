"""`precision_bisect.torch.find`: from a module to the modules that it keeps."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.models
torch: Any = pytest.importorskip("torch", reason="pip install --group models")
pytest.importorskip("onnxscript", reason="pip install --group models")

import precision_bisect.torch as front  # noqa: E402 - where torch is installed
import torch_networks as networks  # noqa: E402
from precision_bisect import PrecisionBisectError, SearchInterrupted  # noqa: E402
from precision_bisect.pipeline import run  # noqa: E402
from precision_bisect.runs.monitoring.events import Event, TrialFinished  # noqa: E402
from precision_bisect.runs.results.result import Result  # noqa: E402
from precision_bisect.search.budget import Budget  # noqa: E402


class Two(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """Takes a dict, a tensor and a number."""

    def forward(self, given: dict[str, Any], other: Any, *, scale: float = 2.0) -> Any:
        return given["u"] * scale + other @ other


def test_modules_are_found_of_a_module(tmp_path: Path) -> None:
    """The module is exported, searched and left as it was; the script keeps what was found."""
    model = networks.network("vit").train()
    samples = [torch.from_numpy(each["x"]) for each in networks.samples("vit")]
    found = front.find(model, samples, tol=1e-2, folder=tmp_path)
    assert ["blocks.1.norm2", "blocks.2.norm2"] == list(found.modules)
    assert model.training
    assert found.script == (tmp_path / front.RUN / "torch_autocast.py").read_text()
    scope: dict[str, Any] = {"__name__": "kept"}
    exec(found.script, scope)
    assert scope["KEPT"] == tuple(found.modules)
    assert found.result.out == tmp_path / front.RUN


def test_without_a_folder_nothing_is_left() -> None:
    """The result says all of itself, and names no folder that is gone."""
    model = networks.network("detector")
    found = front.find(model, torch.from_numpy(networks.samples("detector")[0]["x"]))
    assert ["decode"] == list(found.modules)
    assert found.result.out is None
    assert "decode" in found.script


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("file", "File exists"),
        ("file/in", "Not a directory"),
        ("a\0b", "give a path"),
    ],
)
def test_a_folder_that_cannot_be_is_told(folder: str, says: str, tmp_path: Path) -> None:
    """Before anything is exported into it, in one line."""
    (tmp_path / "file").touch()
    with pytest.raises(PrecisionBisectError, match=says):
        front.find(torch.nn.Tanh(), torch.ones(1, 8), folder=f"{tmp_path}/{folder}")


def test_a_model_that_cannot_be_written_is_no_fault_of_its_export(tmp_path: Path) -> None:
    """What is in its place, or a full disk, is named."""
    (tmp_path / front.MODEL).mkdir()
    with pytest.raises(PrecisionBisectError, match="Is a directory"):
        front.find(torch.nn.Tanh(), torch.ones(1, 8), folder=tmp_path)


@pytest.mark.parametrize("kept", [False, True])
def test_an_interrupt_leaves_no_folder_that_is_gone(*, kept: bool, tmp_path: Path) -> None:
    """Ctrl-C has the best so far; without a folder its result names none either."""
    seen: list[Event] = []

    def interrupt(event: Event) -> None:
        seen.append(event)
        if isinstance(event, TrialFinished) and len(seen) > 8:
            os.kill(os.getpid(), signal.SIGINT)

    model = networks.network("detector")
    sample = torch.from_numpy(networks.samples("detector")[0]["x"])
    with pytest.raises(SearchInterrupted) as caught:
        front.find(model, sample, folder=tmp_path if kept else None, observer=interrupt)
    assert isinstance(caught.value.result, Result)
    assert (tmp_path / front.RUN if kept else None) == caught.value.result.out


@pytest.mark.parametrize(
    "call",
    [
        lambda u, other: ({"u": u}, other),
        lambda u, other: {"given": {"u": u}, "other": other},
        lambda u, other: {"other": other, "given": {"u": u}},
    ],
    ids=["positional", "by name", "by name in another order"],
)
def test_calls_are_given_as_the_module_takes_them(call: Callable[..., Any]) -> None:
    """Nested arguments reach the inputs that they are; the other one's square is infinite."""
    u, other = torch.full((2, 2), 1e30), torch.ones(2, 2)
    first = call(u, other)
    again = dict(reversed(first.items())) if isinstance(first, dict) else first
    found = front.find(Two(), [first, again], tol=1e-2)
    largest = {each.layer: each.largest for each in found.result.diagnosis}
    assert max(value for value in largest.values() if value) == pytest.approx(2e30)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([], "inputs hold no sample"),
        ((3, 4), "PyTorch cannot export Detector"),
        ([{"x": torch.ones(1, 3, 32, 32)}, torch.ones(1)], "samples have other arguments"),
        ([torch.ones(1, 3, 32, 32), (torch.ones(1, 3, 32, 32),) * 2], "a sample has 2 tensors"),
    ],
)
def test_what_cannot_be_used_is_one_line(inputs: Any, said: str) -> None:
    """A module that cannot be exported and samples that do not fit end in one line."""
    with pytest.raises(PrecisionBisectError) as told:
        front.find(networks.network("detector"), inputs)
    assert str(told.value).startswith(said)
    assert 1 == len(str(told.value).splitlines())


def test_an_interrupt_that_the_exporter_falls_over_stays_one(tmp_path: Path) -> None:
    """PyTorch imports as it exports, and cleans up by what it has not imported then."""

    class Interrupted(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def forward(self, x: Any) -> Any:
            try:
                raise KeyboardInterrupt
            finally:
                raise AttributeError("module has no attribute 'exc'")

    with pytest.raises(KeyboardInterrupt):
        front.find(Interrupted(), torch.ones(1, 8), tol=1e-2, folder=tmp_path)


def test_the_export_counts_in_the_time_of_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`max_time_s` is what the caller waits for, and PyTorch takes a while."""
    export, took, spent = front._export, list[float](), list[float]()

    def exported(*given: Any) -> Any:
        begun = time.monotonic()
        program = export(*given)
        took.append(time.monotonic() - begun)
        return program

    def budget(**limits: Any) -> Budget:
        spent.append(limits["spent_s"])
        return Budget(**limits)

    monkeypatch.setattr(front, "_export", exported)
    monkeypatch.setattr(run, "Budget", budget)
    front.find(torch.nn.Tanh(), torch.ones(1, 8), folder=tmp_path, max_time_s=1e5)
    assert spent[0] >= took[0]
