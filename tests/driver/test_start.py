"""The plan to start from, of each source, and what it saves."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest

from effort import nightly
from precision_bisect.errors import PrecisionBisectError
from precision_bisect.graphs.load import load_model
from precision_bisect.layer_table import LayerName
from precision_bisect.options import Options
from precision_bisect.pipeline import known_layers
from precision_bisect.pipeline.known_layers import start_of
from precision_bisect.runs.ledger.ledger_reader import read_ledger
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.runfolder import AUTOCAST, LAYER_PRECISIONS, LEDGER, MIXED_MODEL
from precision_bisect.trial import Kind
from tiny import KEPT, search, write_model

SOURCES = (".", MIXED_MODEL, AUTOCAST, LAYER_PRECISIONS)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Return a run on the small model, which lies beside it, without certificate and copies."""
    folder = tmp_path_factory.mktemp("first")
    return uncertified(write_model(folder / "tiny.onnx"), folder / "run")


def uncertified(model: Path, out: Path, **options: Any) -> Result:
    """Search a model by `ddmin` without certificate and copies."""
    return search(model, out, copies=0, certify="none", strategy="ddmin", **options)


def start_from(first: Result, source: Path) -> tuple[frozenset[LayerName], Sequence[str]]:
    """Return what a file or folder makes of a start for the model of a run."""
    assert first.out is not None
    model = first.out.with_name("tiny.onnx")
    return start_of(Options(model=model, start=str(source)), load_model(model))


@pytest.mark.parametrize("source", SOURCES)
def test_each_export_of_a_run_starts_another(source: str, first: Result) -> None:
    """Run folder, mixed model, AutoCast list and layerPrecisions name what was kept."""
    assert first.out is not None
    start, remarks = start_from(first, first.out / source)
    assert {*first.kept} == start
    assert not remarks


def test_a_start_that_passes_saves_trials(first: Result, tmp_path: Path) -> None:
    """The plan is the first that is tried after the ends, and the search goes on below it."""
    assert first.out is not None
    again = uncertified(first.out.with_name("tiny.onnx"), tmp_path / "run", start=first.out)
    assert Status.FOUND is again.status
    assert {*again.kept} <= {*first.kept}
    assert again.trials < first.trials
    judged = [
        trial.proposal.plan
        for trial in read_ledger(tmp_path / "run" / LEDGER).own
        if trial.proposal.kind is Kind.JUDGE
    ]
    assert len(first.kept) == len(judged[2])


@pytest.mark.parametrize("strategy", ["ddmin", *nightly("quickxplain", "probdd", "hierarchical")])
def test_strategies_go_down_from_it(strategy: str, tmp_path: Path) -> None:
    """What lies outside a start that passes is not tried high again."""
    path = write_model(tmp_path / "tiny.onnx")
    start = ",".join(f"{name}:fp32" for name in [*KEPT, "n1_Tanh", "n19_Mul"])
    result = search(path, tmp_path / "run", strategy=strategy, start=start, copies=0)
    whole = search(path, tmp_path / "whole", strategy=strategy, copies=0)
    assert KEPT == list(result.kept) == list(whole.kept)
    assert result.certificate.minimal
    assert result.trials <= whole.trials + 1


def test_a_start_that_fails_costs_one_trial(tmp_path: Path) -> None:
    """A start that lacks a layer is tried, and the search finds the rest."""
    path = write_model(tmp_path / "tiny.onnx")
    result = search(path, tmp_path / "run", start="n4_Mul:fp32,n99:fp32")
    assert KEPT == list(result.kept)
    assert any(
        "names 1 layer that tiny.onnx does not have: 'n99'" in note for note in result.notes
    )


def test_expressions_of_autocast_start_a_run(tmp_path: Path) -> None:
    """A list as AutoCast itself takes it, matched at the start of names, not to all of one."""
    path = write_model(tmp_path / "tiny.onnx")
    (tmp_path / "list.txt").write_text("n4_\nn(5|14)_Sq\n.*13_Mul\nnone\n")
    options = Options(model=path, start=str(tmp_path / "list.txt"))
    start, remarks = start_of(options, load_model(path))
    assert {*KEPT} == start
    assert 1 == len(remarks)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("nowhere", "is no file or folder"),
        ("n4_Mul:fp16", "keeps no layer"),
        ("other:fp32", "names no layer that is decided on"),
        ("tiny.onnx", "has no 16-bit layer"),
        ("empty.txt", "has an empty list"),
        ("binary.txt", "is no text"),
        ("hang.txt", "takes more than"),
        ("gone.json", "no finished run"),
        (".", "no finished run"),
    ],
)
def test_what_is_no_start_is_refused(
    start: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is handed over as a start ends in one line, also an expression without end."""
    path = write_model(tmp_path / "tiny.onnx")
    monkeypatch.chdir(tmp_path)
    if start == "hang.txt":
        monkeypatch.setattr(known_layers, "MATCH_S", 1.0)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "hang.txt").write_text("n4_Mul\n" + "(.*)*" * 8 + "x\n")
    with pytest.raises(PrecisionBisectError) as error:
        search(path, tmp_path / "run", start=start)
    assert said in error.value.one_line()
    assert "\n" not in error.value.one_line()


def test_a_mixed_model_of_another_export_counts_by_its_names(
    first: Result, tmp_path: Path
) -> None:
    """Layers that only the other file has are told, and the others taken."""
    assert first.out is not None
    mixed = onnx.load(first.out / MIXED_MODEL)
    kept = next(node for node in mixed.graph.node if node.name == first.kept[0])
    kept.name = "renamed"
    onnx.save(mixed, tmp_path / "mixed.onnx")
    start, remarks = start_from(first, tmp_path / "mixed.onnx")
    assert {*first.kept[1:]} == start
    assert "'renamed'" in remarks[0]
