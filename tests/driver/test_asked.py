"""Layers that are high or low by order: in every plan, on every way to an answer."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ladder_model
import precision_bisect
from effort import examples
from models import loaded, parse, save
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.commandline.main import main
from precision_bisect.errors import ExitCode, RunFolderError, UsageError
from precision_bisect.exports.finished import read_finished
from precision_bisect.exports.trtexec_names import parse_layer_precisions
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.quantization.calibration import scales_for
from precision_bisect.graphs.typed.pinning import pin_formless
from precision_bisect.layer_table import LayerName, assigned
from precision_bisect.options import Options
from precision_bisect.pipeline.known_layers import with_asked
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.runs.ledger.ledger_reader import read_ledger
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Asked, Result
from precision_bisect.runs.runfolder import LAYER_PRECISIONS, LEDGER, MIXED_MODEL
from precision_bisect.trial import Kind, Trial
from random_graphs import random_models
from tiny import KEPT, search, write_model

NAMES = "abcdefgh"
BODY = """(float[1,4] x) => (float[1,4] y) <float k = {400}, float l = {0.0025}, float m = {100}> {
    [a] p = Abs(x) [b] q = Mul(p, k) [c] r = Mul(q, q) [d] s = Sqrt(r)
    [e] t = Mul(s, l) [f] u = Add(t, m) [g] v = Sub(u, m) [h] y = Neg(v) }"""
"""The square overflows, and what is added cancels: several sets pass, of one and two pairs."""
FEED = [{"x": np.array([[0.3, 0.7, 1.1, 1.9]], np.float32)}]
TOLERANCE = 0.02
PAIR = Pair(low="fp16", high="fp32")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of `BODY`."""
    return save(parse(BODY), tmp_path_factory.mktemp("model"))


@cache
def errors() -> dict[int, float]:
    """Return the error of each plan by its mask, as the emulator without any order has it."""
    backend, high = EmulatedBackend(loaded(parse(BODY))), Plan.all_high(len(NAMES))
    reference = backend.evaluate(high, FEED[0])["y"].astype(np.float64)
    found = {}
    for mask in range(1 << len(NAMES)):
        output = backend.evaluate(Plan(mask), FEED[0])["y"].astype(np.float64)
        apart = np.abs(output - reference)
        figure = np.minimum(apart, apart / np.abs(reference)).max()
        found[mask] = float(figure) if np.isfinite(output).all() else float("inf")
    return found


def least(keep: Plan, low: Plan) -> Plan | None:
    """Return the smallest plan that passes with these layers high and those low."""
    plans = (Plan(mask) for mask, error in errors().items() if error <= TOLERANCE)
    return min(
        (p for p in plans if p.mask & keep.mask == keep.mask and not p.mask & low.mask),
        default=None,
    )


def find(model: Path, **options: Any) -> tuple[Result, Sequence[Trial]]:
    """Search a model; return the result and the trials, of which no file stays."""
    settings = {"tol": TOLERANCE, "copies": 0, "threads": 1, **options}
    with TemporaryDirectory() as folder:
        out = Path(folder, "run")
        result = precision_bisect.find(model, inputs=FEED, out=out, **settings)
        return result, read_ledger(out / LEDGER).own


def places(layers: Any) -> Plan:
    """Return layers of `BODY`, by their names, as a plan."""
    return Plan.of(i for i, name in enumerate(NAMES) if name in layers)


PATTERNS = st.sets(
    st.sampled_from([*"abcdefgh", "Abs", "Mul", "Sub", "[a-c]", "f|g", "S.*"]), max_size=3
)


@given(keep=PATTERNS, low=PATTERNS, strategy=st.sampled_from(["exhaustive", "guided", "ddmin"]))
@examples(6)
def test_every_plan_obeys_and_the_answer_is_minimal(
    model: Path, keep: set[str], low: set[str], strategy: str
) -> None:
    """Whatever patterns name: no trial departs from it, and the answer is least beside it."""
    asked = Options(model=model, keep=sorted(keep), low_only=sorted(low))
    try:
        obeyed, _ = with_asked(asked, load_model(model))
    except UsageError:
        with pytest.raises(UsageError):
            find(model, keep=sorted(keep), low_only=sorted(low), strategy=strategy)
        return
    wanted = {name: form.precision for name, form in obeyed.table.asked.items()}
    kept_by_order = places([name for name, kind in wanted.items() if kind == "fp32"])
    low_by_order = places([name for name, kind in wanted.items() if kind == "fp16"])
    result, trials = find(model, keep=sorted(keep), low_only=sorted(low), strategy=strategy)
    assert {each.layer: each.precision for each in result.asked} == wanted
    for trial in trials:
        types = assigned(obeyed.table, PAIR, trial.proposal.plan)
        assert wanted.items() <= types.items()
        high = places([name for name, kind in types.items() if kind == "fp32"])
        if trial.proposal.kind in (Kind.JUDGE, Kind.PREDICT):
            assert trial.outcome.passed == (errors()[high.mask] <= TOLERANCE)
    answer = places(result.kept).with_(kept_by_order.kept)
    best = least(kept_by_order, low_by_order)
    if best is None:
        assert Status.INFEASIBLE is result.status
        return
    assert result.status in (Status.FOUND, Status.NOTHING_TO_KEEP)
    assert errors()[answer.mask] <= TOLERANCE
    if strategy == "exhaustive":
        assert len(answer) == len(best)
    for name in result.certificate.checked:
        assert name not in wanted
        assert errors()[answer.without(places([name]).kept).mask] > TOLERANCE
    assert [*result.certificate.checked, *result.certificate.unchecked] == result.kept


@given(
    proto=random_models(),
    pair=st.sampled_from([("fp16", "fp32"), ("bf16", "fp16"), ("int8", "fp32"), ("fp8", "fp32")]),
    data=st.data(),
)
@examples(15)
def test_an_order_computes_what_a_plan_would(proto: Any, pair: Any, data: st.DataObject) -> None:
    """A layer by order is the very layer that a plan makes: with groups, followers, Q/DQ."""
    types = Pair(low=pair[0], high=pair[1])
    model = pin_formless(loaded(proto), types)
    names = model.table.names
    if not names:
        return
    drawn = st.sets(st.sampled_from(names), max_size=3)
    keep = data.draw(drawn)
    low = data.draw(drawn) - keep
    plan = Plan.of(data.draw(st.sets(st.integers(0, len(names) - 1))))
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    scales = scales_for(model, types, [{"x": x}], Options(model=model.path))
    whole = EmulatedBackend(model, low=types.low, high=types.high, scales=scales)
    index = {name: i for i, name in enumerate(names)}
    as_plan = plan.with_(index[each] for each in keep).without(index[each] for each in low)
    obeyed = obeying(model, types, keep, low)
    left = {name for i, name in enumerate(names) if i in plan.kept}
    own = Plan.of(i for i, name in enumerate(obeyed.table.names) if name in left)
    ordered = EmulatedBackend(obeyed, low=types.low, high=types.high, scales=scales)
    expected, found = whole.evaluate(as_plan, {"x": x}), ordered.evaluate(own, {"x": x})
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(array, found[name])


def obeying(model: Model, pair: Pair, keep: set[LayerName], low: set[LayerName]) -> Model:
    """Return the model with these layers high and those low."""
    forms = dict.fromkeys(keep, pair.high_form) | dict.fromkeys(low, pair.low_form)
    return replace(model, table=model.table.asking(forms))


def test_low_only_that_breaks_it_alone_is_named(tmp_path: Path) -> None:
    """Layers that cannot be low with all others high are told by name; nothing else is blamed."""
    path = write_model(tmp_path / "tiny.onnx")
    result = search(path, tmp_path / "run", low_only=["n5_Sqrt", "n7_Tanh", "n9_Mul"])
    assert Status.INFEASIBLE is result.status
    assert 1 == result.exit_code
    assert "n5_Sqrt of --low-only cannot be FP16 (error" in result.message
    assert "n7_Tanh" not in result.message


@pytest.mark.parametrize(
    ("trials", "status"), [(None, Status.NOT_PRECISION), (2, Status.BUDGET_EXHAUSTED)]
)
def test_an_ill_model_is_no_fault_of_low_only(
    tmp_path: Path, trials: int | None, status: Status
) -> None:
    """Where even every layer high fails, or was not tried, nothing is blamed on --low-only."""
    path = write_model(tmp_path / "tiny.onnx")
    np.savez(tmp_path / "reference.npz", v19=np.ones((1, 8), np.float32))
    np.savez(tmp_path / "inputs.npz", x=np.ones((1, 8), np.float32))
    given_outputs = {"inputs": tmp_path / "inputs.npz", "reference": tmp_path / "reference.npz"}
    run = tmp_path / "run"
    result = search(path, run, low_only=["n7_Tanh"], max_trials=trials, **given_outputs)
    assert status is result.status


def test_kept_by_order_is_neither_proven_nor_counted(tmp_path: Path) -> None:
    """What was asked for stands apart: in the counts, the certificate, the files for engines."""
    path = write_model(tmp_path / "tiny.onnx")
    result = search(
        path,
        tmp_path / "run",
        keep=["n4_Mul", "Sigmoid"],
        low_only=["n1_Tanh"],
        objective="fewest",
    )
    assert ["n5_Sqrt", "n13_Mul", "n14_Sqrt"] == result.kept == list(result.certificate.checked)
    assert result.certificate.minimal
    assert 17 == result.candidates
    assert [
        Asked(layer="n1_Tanh", precision="fp16"),
        Asked(layer="n4_Mul", precision="fp32"),
        Asked(layer="n10_Sigmoid", precision="fp32"),
    ] == result.asked
    told = parse_layer_precisions((tmp_path / "run" / LAYER_PRECISIONS).read_text().strip())
    assert {*KEPT, "n10_Sigmoid"} == {name for name, kind in told.items() if kind == "fp32"}
    mixed = load_model(tmp_path / "run" / MIXED_MODEL)
    assert {*KEPT, "n10_Sigmoid"} == {*mixed.table.names}.difference(mixed.in_low)
    finished = read_finished(tmp_path / "run", load_model(path))
    assert {*finished.high} == {*KEPT, "n10_Sigmoid"}
    again = finished.with_pinned(load_model(path))
    assert 17 == len(again.table.candidates)


def test_all_others_may_run_low(tmp_path: Path) -> None:
    """With every culprit kept by order nothing is left to keep, and that is the answer."""
    path = write_model(tmp_path / "tiny.onnx")
    result = search(path, tmp_path / "run", keep=KEPT)
    assert (Status.NOTHING_TO_KEEP, []) == (result.status, list(result.kept))
    assert result.error is not None
    assert result.error < 1e-2


def test_another_order_is_another_run(tmp_path: Path) -> None:
    """A run goes on only with the layers that it began with, and the keyword is named."""
    path = write_model(tmp_path / "tiny.onnx")
    search(path, tmp_path / "run", keep=["Sigmoid"])
    first = search(path, tmp_path / "run", keep=["n10_Sigmoid"], resume=True)
    assert Status.FOUND is first.status
    for other in ({}, {"low_only": ["Sigmoid"]}, {"keep": ["Sigmoid"], "start": "n4_Mul:fp32"}):
        with pytest.raises(RunFolderError, match=r"by keep and low_only|another start"):
            search(path, tmp_path / "run", resume=True, **other)


def test_orders_hold_on_every_rung(tmp_path: Path) -> None:
    """In a ladder --keep means the highest type and --low-only the lowest."""
    result = precision_bisect.find(
        ladder_model.write(tmp_path),
        inputs=ladder_model.samples(),
        out=tmp_path / "run",
        tol=0.1,
        ladder=("int8", "fp16", "fp32"),
        backend="emulated",
        keep=["first"],
        low_only=["third"],
    )
    assert Status.FOUND is result.status
    assert {"first": "fp32", "third": "int8"} == {a.layer: a.precision for a in result.asked}
    assert [*ladder_model.OUTLIERS, *ladder_model.OVERFLOWING] == result.kept
    assert {"fp32": 3, "int8": 1} == {
        rung.precision: rung.count for rung in result.rungs if rung.precision != "fp16"
    }
    finished = read_finished(tmp_path / "run", load_model(tmp_path / "model.onnx"))
    assert "first" in finished.high
    assert "third" not in finished.high


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keep": ["Tanhh"]}, "matches no layer; did you mean Tanh?"),
        ({"keep": ["("]}, "is no regular expression"),
        ({"low_only": [".*"]}, "leave no layer of"),
        ({"keep": ["Mul"], "low_only": ["n4_Mul"]}, "both name 'n4_Mul'"),
        ({"keep": "Mul"}, "give a list of patterns"),
        ({"keep": [""]}, "give a list of patterns"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """A pattern that means nothing, or the opposite of another one, ends in one line."""
    path = write_model(tmp_path / "tiny.onnx")
    with pytest.raises(UsageError) as error:
        search(path, tmp_path / "run", **options)
    assert said in error.value.one_line()
    assert not (tmp_path / "run").exists()


def test_advice_is_tried_with_what_was_asked_for(tmp_path: Path) -> None:
    """A changed model obeys, too: where a square must be low, no scaling beside it helps."""
    path = write_model(tmp_path / "tiny.onnx")
    result = search(path, tmp_path / "run", keep=["n4_Mul", "n5_Sqrt"])
    assert ["n13_Mul", "n14_Sqrt"] == result.kept
    tried = [each for each in result.advice if each.tried is not None]
    assert tried
    for each in tried:
        assert each.tried is not None
        assert each.tried.kept <= len(result.kept)


def test_what_has_no_low_form_is_told(tmp_path: Path) -> None:
    """INT8 has kernels for few operators: the others that were asked for are named, or refused."""
    path = ladder_model.write(tmp_path)
    int8: dict[str, Any] = {"inputs": ladder_model.samples(), "low": "int8", "tol": 0.1}
    out = tmp_path / "run"
    result = precision_bisect.find(path, out=out, low_only=["first", "up"], **int8)
    assert [Asked(layer="first", precision="int8")] == result.asked
    assert any("--low-only: up cannot run in INT8" in note for note in result.notes)
    for refused, said in ((["up"], "up cannot run in INT8"), (["MatMul"], "leave no layer of")):
        with pytest.raises(UsageError, match=said):
            precision_bisect.find(path, out=tmp_path / "none", low_only=refused, **int8)


def test_a_ladder_goes_on_where_its_lowest_rung_is_settled(tmp_path: Path) -> None:
    """What is left for the higher rungs is decided, and what breaks it alone is named."""
    ladder: dict[str, Any] = {"ladder": ("int8", "fp16", "fp32"), "tol": 0.1}
    path, inputs = ladder_model.write(tmp_path), ladder_model.samples()
    result = precision_bisect.find(
        path,
        inputs=inputs,
        out=tmp_path / "run",
        keep=["second"],
        low_only=["t.*", "first"],
        **ladder,
    )
    assert Status.FOUND is result.status
    assert ladder_model.OVERFLOWING == result.kept
    result = precision_bisect.find(
        path, inputs=inputs, out=tmp_path / "other", low_only=["MatMul"], **ladder
    )
    assert Status.INFEASIBLE is result.status
    assert "second of --low-only cannot be INT8" in result.message


def test_an_engine_has_to_honour_orders_too(
    tmp_path: Path, rtx: Flavour, capsys: pytest.CaptureFixture[str]
) -> None:
    """`verify` builds the plan with what was asked for, and looks at those layers as at others."""
    path = write_model(tmp_path / "tiny.onnx")
    search(
        path,
        tmp_path / "run",
        keep=["n4_Mul", "Sigmoid"],
        low_only=["n1_Tanh"],
        objective="fewest",
    )
    code = main(["verify", str(path), "--plan", str(tmp_path / "run"), "--json"])
    assert code in (ExitCode.OK, ExitCode.NOT_OBSERVABLE)
    told = json.loads(capsys.readouterr().out)
    assert "tensorrt-rtx" == told["backend"]
    assert {*KEPT, "n10_Sigmoid"} == {*told["kept"]}
    assert {*KEPT, "n10_Sigmoid"} == {each["layer"] for each in told["layers"]}
