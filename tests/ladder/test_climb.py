"""Ladders end to end: what each rung finds, how runs end, and going on with them."""

import json
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import precision_bisect
import tiny
from assigned_graphs import run_as_written
from ladder_model import OUTLIERS, OVERFLOWING, QUANTIZABLE, samples, write
from models import normal, parse, save, with_weights
from precision_bisect.commandline.main import main
from precision_bisect.errors import RunFolderError, UsageError
from precision_bisect.graphs.fp32_outputs import reference_outputs
from precision_bisect.graphs.load import load_model
from precision_bisect.options import Options
from precision_bisect.precisions import PrecisionName, parse_ladder
from precision_bisect.runs.monitoring.events import Event, RunStarted, TrialFinished, Warned
from precision_bisect.runs.results.certificates import Certificate, Forecasts, forecasts_of
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from typed_graphs import simulated

LADDER: tuple[PrecisionName, ...] = ("int8", "fp16", "fp32")
TOLERANCE = 0.1


def climb(folder: Path, **options: Any) -> Result:
    """Search the model of `ladder_model`."""
    settings = {"tol": TOLERANCE, "ladder": LADDER, "backend": "emulated", **options}
    search = partial(precision_bisect.find, write(folder), inputs=samples(), out=folder / "run")
    return tiny.ended(search, **settings)


def test_each_rung_finds_its_layers(tmp_path: Path) -> None:
    """The outlier channel needs FP16, the square FP32; both are proven in the whole."""
    result = climb(tmp_path)
    assert Status.FOUND is result.status
    assert [
        ("fp32", OVERFLOWING, 2),
        ("fp16", OUTLIERS, 4),
        ("int8", None, 2),
    ] == [(rung.precision, rung.layers, rung.count) for rung in result.rungs]
    assert [*OUTLIERS, *OVERFLOWING] == result.kept
    assert ("int8", "fp32", TOLERANCE) == (result.low, result.high, result.tolerance)
    assert result.certificate.minimal
    assert all(error is None or error > TOLERANCE for error in result.certificate.errors.values())
    assert result.error is not None
    assert result.error <= TOLERANCE
    causes = {each.layer: each.cause for each in result.diagnosis}
    assert {"second": "outliers", "square": "overflow", "root": "overflow"} == causes
    assert {"stretch", "up", "down"} == {each.layer for each in result.pinned}
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert written["rungs"][0] == {"precision": "fp32", "layers": OVERFLOWING, "count": 2}


def test_the_exported_model_is_what_was_judged(tmp_path: Path) -> None:
    """The typed graph holds all rungs; run with its roundings, it has the error of the result."""
    result = climb(tmp_path)
    typed = onnx.load(tmp_path / "run" / "model.mixed.onnx")
    onnx.checker.check_model(typed, full_check=True)
    kinds = {tensor.data_type for tensor in typed.graph.initializer}
    assert {onnx.TensorProto.INT8, onnx.TensorProto.FLOAT16} <= kinds
    reference = reference_outputs(load_model(tmp_path / "model.onnx"), samples())
    outputs = [run_as_written(simulated(typed), sample) for sample in samples()]
    worst = max(
        np.minimum(np.abs(got["y"] - want["y"]), np.abs(got["y"] / want["y"] - 1)).max()
        for got, want in zip(outputs, reference, strict=True)
    )
    assert pytest.approx(result.error, rel=1e-3) == worst


@pytest.mark.nightly
def test_types_of_a_ladder_may_be_any(tmp_path: Path) -> None:
    """FP8 under BF16: BF16 has the range, so that nothing overflows any more."""
    result = climb(tmp_path, ladder=("fp8", "bf16", "fp32"), tol=0.5)
    assert result.status in (Status.FOUND, Status.NOTHING_TO_KEEP)
    assert [] == result.rungs[0].layers
    assert ["fp32", "bf16", "fp8"] == [rung.precision for rung in result.rungs]


def test_a_rung_without_a_form_is_passed_over_each_time(tmp_path: Path) -> None:
    """With half of the tolerance only the factor is left for FP8, which has none; with all of it
    the product, too."""
    body = (
        "(float[4,16] x) => (float[4,8] y) { [factor] s = Mul(x, k) [product] y = MatMul(s, w) }"
    )
    channels = np.ones(16, np.float32)
    channels[15] = 500.0
    proto = with_weights(parse(body), {"k": channels, "w": normal(16, 8)})
    result = precision_bisect.find(
        save(proto, tmp_path),
        inputs=[{"x": normal(4, 16) * 10}],
        tol=8e-3,
        out=tmp_path / "run",
        threads=1,
        backend="emulated",
        ladder=("fp8", "bf16", "fp32"),
    )
    assert Status.FOUND is result.status


@pytest.mark.nightly
def test_a_ladder_of_two_types_is_the_pair(tmp_path: Path) -> None:
    """The same layers are kept, with the same certificate."""
    ladder = climb(tmp_path, ladder=("fp16", "fp32"))
    pair = climb(tmp_path, ladder=(), overwrite=True)
    assert (pair.kept, pair.error) == (ladder.kept, ladder.error)
    assert pair.certificate == ladder.certificate
    assert [r.count for r in pair.rungs] == [r.count for r in ladder.rungs]


def test_forecasts_of_two_rungs_may_each_be_wrong() -> None:
    """Counts add up, and so does the risk; without forecasts there is nothing to add."""
    one = Forecasts(builds=7, right=7, drawn=6, wrong_at_most=2, confidence=0.9)
    plain = Certificate(minimal=True, checked=(), unchecked=())
    both = forecasts_of([replace(plain, forecasts=one), plain, replace(plain, forecasts=one)])
    assert both is not None
    assert pytest.approx(0.8) == both.confidence
    summed = Forecasts(builds=14, right=14, drawn=12, wrong_at_most=4, confidence=both.confidence)
    assert summed == both
    assert None is forecasts_of([plain])


def test_watchers_hear_of_each_rung(tmp_path: Path) -> None:
    """Each search says its types; what holds for the whole model is said once."""
    events: list[Event] = []
    climb(tmp_path, observer=events.append)
    rungs = [event.rung for event in events if isinstance(event, RunStarted)]
    assert ["fp16 against fp32", "int8 against fp16"] == rungs[:2]
    warnings = [event.message for event in events if isinstance(event, Warned)]
    assert len(set(warnings)) == len(warnings)


@pytest.mark.nightly
@pytest.mark.parametrize("most", [1, 2, 5, 9, 13])
def test_a_budget_ends_it_anywhere_and_it_goes_on(tmp_path: Path, most: int) -> None:
    """What was found so far passes; resumed, nothing is tried twice and the answer is the same."""
    cut = climb(tmp_path, max_trials=most)
    assert Status.BUDGET_EXHAUSTED is cut.status
    assert most == cut.trials
    assert cut.error is None or cut.error <= TOLERANCE
    events: list[Event] = []
    result = climb(tmp_path, resume=True, observer=events.append)
    fresh = [e for e in events if isinstance(e, TrialFinished) and not e.recalled]
    assert [*OUTLIERS, *OVERFLOWING] == result.kept
    assert result.certificate.minimal
    assert result.evaluations == cut.evaluations + len(fresh)
    again = climb(tmp_path, resume=True)
    assert (result.kept, result.trials) == (again.kept, again.trials)


def test_an_interrupt_between_rungs_keeps_what_was_found(tmp_path: Path) -> None:
    """The rung that was done counts; the layers of the next stay one type up."""

    def interrupt(event: Event) -> None:
        if isinstance(event, Warned) and "INT8" in event.message:
            raise KeyboardInterrupt

    result = climb(tmp_path, observer=interrupt)
    assert Status.INTERRUPTED is result.status
    assert [OVERFLOWING, QUANTIZABLE] == [rung.layers for rung in result.rungs[:-1]]
    assert not result.certificate.minimal
    assert [*OUTLIERS, *OVERFLOWING] == climb(tmp_path, resume=True).kept


def test_nothing_to_keep_is_said(tmp_path: Path) -> None:
    """With a tolerance that everything satisfies no rung keeps anything."""
    result = climb(tmp_path, ladder=("int8", "bf16", "fp32"), tol=5.0)
    assert Status.NOTHING_TO_KEEP is result.status
    assert result.certificate.minimal
    assert [[], []] == [rung.layers for rung in result.rungs[:-1]]


def test_runs_of_another_kind_are_not_mixed(tmp_path: Path) -> None:
    """A pair's run and a ladder's do not share a folder, unless one replaces the other."""
    climb(tmp_path)
    with pytest.raises(RunFolderError, match="already holds a run"):
        climb(tmp_path)
    with pytest.raises(RunFolderError, match="over a ladder"):
        climb(tmp_path, ladder=(), resume=True)
    climb(tmp_path, ladder=(), overwrite=True)
    with pytest.raises(RunFolderError, match="of a pair"):
        climb(tmp_path, resume=True)


@pytest.mark.parametrize(
    ("ladder", "word"),
    [
        ("int8", "at least two"),
        ("fp16,fp16", "at least two"),
        ("fp16,int8", "int8 is no step up from fp16"),
        ("fp32,fp16", "fp16 is no step up from fp32"),
        ("int8,fp8,fp32", "fp8 is no step up from int8"),
        ("int4,fp16", "'int4' is no type"),
        ("", "'' is no type"),
    ],
)
def test_bad_ladders_are_one_line(
    capsys: pytest.CaptureFixture[str], ladder: str, word: str
) -> None:
    """The line says what is wrong and what a ladder looks like."""
    assert 2 == main(["model.onnx", "--ladder", ladder])
    (line,) = capsys.readouterr().err.splitlines()
    assert word in line


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--ladder", "int8,fp32", "--low", "fp16"], "--ladder excludes --low"),
        (["--low", "bf16", "--high", "bf16"], "both bf16"),
        (["--low", "fp8", "--calibration", "entropy"], "is for INT8"),
    ],
)
def test_bad_pairs_are_one_line(
    capsys: pytest.CaptureFixture[str], flags: list[str], word: str
) -> None:
    """Types that contradict each other are refused before anything is read."""
    assert 2 == main(["model.onnx", *flags])
    (line,) = capsys.readouterr().err.splitlines()
    assert word in line


def test_every_legal_chain_is_taken() -> None:
    """Four types are the longest chain; both orders of the 16-bit types are legal."""
    chains = ["int8,fp16,bf16,fp32", "fp8,bf16,fp16,fp32", "fp8,fp32", "bf16,fp16"]
    for text in chains:
        ladder = parse_ladder(text)
        assert text == ",".join(ladder)
        assert all(a != b for a, b in pairwise(ladder))
        assert ladder == Options(model=Path("m"), ladder=ladder).ladder
    with pytest.raises(UsageError):
        Options(model=Path("m"), ladder=("fp32", "fp16"))
