"""Copies of the samples: what changes, what does not, and what a plan comes to on them."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import models
import tiny
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.graphs.fp32_outputs import ReferenceSession, reference_outputs
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.lowtypes import BF16, FP16, LowType
from precision_bisect.graphs.whole_numbers import whole_numbers
from precision_bisect.judging.comparators.polygraphy_plugin import PolygraphyComparator, Tolerance
from precision_bisect.judging.inputs.copies import FACTORS, Copies
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.search.evaluation import Evaluator
from precision_bisect.trial import Phase, Proposal, SampleSet, Stability, Verdict
from simulated import Simulated

FEEDS: list[Sample] = [
    {"x": np.linspace(1.01, 2, 8, dtype=np.float32), "ids": np.arange(8, dtype=np.int64)}
]


def copies_of(count: int = 4, **fields: Any) -> Copies:
    """Return copies of `FEEDS`, whose reference is the feed itself."""
    sets = {SampleSet.JUDGED: (FEEDS, FEEDS)}
    return Copies(samples=sets, count=count, refer=lambda feed: feed, **fields)


def test_floats_change_by_one_part_in_100_000_and_integers_do_not() -> None:
    """Each element draws its own relative change; the reference is that of the changed feed."""
    (feed,), (reference,) = copies_of().make(SampleSet.JUDGED, 1, 0)
    changes = feed["x"] / FEEDS[0]["x"] - 1
    assert feed["x"].dtype == np.float32
    assert 2e-6 < np.abs(changes).mean() < 5e-5
    assert len(set(changes.tolist())) > 4
    np.testing.assert_array_equal(FEEDS[0]["ids"], feed["ids"])
    assert feed is reference


def test_workers_on_different_draws_get_their_own_copies() -> None:
    """One that is interrupted anywhere in `make` by another returns the copy that it asked for."""

    class Interrupting(int):
        """A draw at whose first comparison another worker makes a copy of the next draw."""

        compared = False

        def __eq__(self, other: object) -> bool:
            if not self.compared:
                self.compared = True
                copies.make(SampleSet.JUDGED, 2, 0)
            return int(self) == other

        __hash__ = int.__hash__

    copies = copies_of()
    for held in (1, 2):
        expected = copies_of().make(SampleSet.JUDGED, 1, 0)[0][0]["x"]
        copies.make(SampleSet.JUDGED, held, 0)
        found = copies.make(SampleSet.JUDGED, Interrupting(1), 0)[0][0]["x"]
        np.testing.assert_array_equal(expected, found)


def test_masks_stay_exact() -> None:
    """What is 1 less a mask of ones must stay 0, and so must what a mask of zeros hides."""
    mask = np.array([0.0, 1.0, 1.0], np.float32)
    feeds: list[Sample] = [{"x": np.array([0.3]), "m": mask}]
    copies = Copies(samples={SampleSet.JUDGED: (feeds, feeds)}, count=1, refer=lambda feed: feed)
    (feed,), _ = copies.make(SampleSet.JUDGED, 1, 0)
    assert mask is feed["m"]
    assert 0.3 != feed["x"].item()


@pytest.mark.parametrize("half", [FP16, BF16])
def test_what_is_exact_in_the_low_type_changes_by_its_steps(half: LowType) -> None:
    """Pixels and stored 16-bit floats would be rounded back from a smaller change; zeros stay."""
    pixels = np.arange(256, dtype=np.float32)
    feeds: list[Sample] = [{"x": pixels}]
    sets = {SampleSet.JUDGED: (feeds, feeds)}
    (feed,), _ = Copies(samples=sets, count=1, refer=lambda feed: feed, half=half).make(
        SampleSet.JUDGED, 1, 0
    )
    np.testing.assert_array_equal(feed["x"], feed["x"].astype(half.numpy_type).astype(np.float32))
    assert 100 < (feed["x"] != pixels).sum()
    assert np.abs(feed["x"][1:] / pixels[1:] - 1).max() < 6 * 2.0 ** (1 - half.digits)
    assert 0 == feed["x"][0]


@pytest.mark.parametrize("half", [FP16, BF16])
@pytest.mark.parametrize("stored", [FP16, BF16])
def test_what_a_file_stores_in_16_bits_changes_whatever_the_low_type(
    stored: LowType, half: LowType
) -> None:
    """A change that an input of the stored type cannot hold would be none: copies differ in it."""
    values = stored.round(np.linspace(-3, 60000, 4096, dtype=np.float32))
    sets = {SampleSet.JUDGED: ([{"x": values}], [{"x": values}])}
    copies = Copies(samples=sets, count=1, refer=lambda feed: feed, half=half)
    (feed,), _ = copies.make(SampleSet.JUDGED, 1, 0)
    assert np.mean(stored.round(feed["x"]) != values) > 0.01
    assert np.abs(feed["x"] / values - 1).max() < 0.1


def test_each_draw_and_each_copy_is_another_and_always_the_same() -> None:
    """What a resumed run draws is what the first one drew, whatever was held before."""
    copies = copies_of()
    places = [(draw, number) for draw in (1, 2) for number in (0, 1)]
    made = [copies_of().make(SampleSet.JUDGED, *place)[0][0]["x"].tobytes() for place in places]
    again = [copies.make(SampleSet.JUDGED, *place)[0][0]["x"].tobytes() for place in places]
    other = copies_of(seed=1).make(SampleSet.JUDGED, 1, 0)[0][0]["x"].tobytes()
    assert made == again
    assert 4 == len(set(made))
    assert other not in made


def test_without_a_float_input_each_layer_has_a_factor() -> None:
    """The samples and their reference stay as they are."""
    (feed,), (reference,) = copies_of(layers=3).make(SampleSet.JUDGED, 1, 0)
    assert (3,) == feed[FACTORS].shape
    assert FEEDS[0]["x"] is feed["x"]
    assert FEEDS[0] is reference


def judged(
    errors: list[float], proposal: Proposal, allowed: int = 0, samples: int = 1, **fields: Any
) -> tuple[Verdict | None, float | None, Stability | None]:
    """Return verdict, error and stability of a plan with these errors, the samples' first."""
    told = iter(errors)
    backend = Simulated(lambda plan, feed: next(told))
    sets = {SampleSet.JUDGED: ([{"x": np.ones(1)}] * samples, [{"y": np.zeros(1)}] * samples)}
    evaluator = Evaluator(
        backend=backend,
        emulator=backend,
        comparator=PolygraphyComparator(
            metric="elementwise",
            atol=Tolerance(default=1.0),
            rtol=Tolerance(default=0.0),
            outputs=("y",),
        ),
        samples=sets,
        keep=Path(),
        copies=Copies(
            samples=sets,
            count=4,
            allowed=allowed,
            refer=lambda feed: {"y": np.zeros(1)},
            **fields,
        ),
    )
    outcome = evaluator(proposal)
    return outcome.verdict, outcome.error, outcome.evidence.stability


DRAWN = Proposal(plan=Plan.of(()), draw=1, phase=Phase.SEARCH)


def test_no_reference_waits_beside_a_ranking() -> None:
    """A ranking makes no copies: it would hold one session of thousands of layers in vain."""
    rested: list[Phase] = []
    for phase in (Phase.SEARCH, Phase.RANKING):
        note = partial(rested.append, phase)
        judged([0.5], Proposal(plan=Plan.of(()), phase=phase), rest=note)
    assert [Phase.RANKING] == rested


def test_a_plan_that_holds_on_every_copy_passes() -> None:
    """Its error is the worst of all; the jitter is that of the logarithm."""
    verdict, error, stability = judged([0.5, 0.2, 0.4, 0.2, 0.4], DRAWN)
    assert (Verdict.PASS, 0.5) == (verdict, error)
    assert stability is not None
    assert (4, 0, 0.4) == (stability.copies, stability.failed, stability.error_max)
    assert pytest.approx(0.3) == stability.error_median
    assert pytest.approx(math.log(2) / math.sqrt(3)) == stability.jitter


def test_one_copy_that_fails_is_too_many_unless_it_is_allowed() -> None:
    """The error that is told is above the limit exactly where the verdict is a failure."""
    assert (Verdict.FAIL, 1.5) == judged([0.5, 0.2, 1.5, 0.2, 0.4], DRAWN)[:2]
    assert (Verdict.PASS, 0.5) == judged([0.5, 0.2, 1.5, 0.2, 0.4], DRAWN, allowed=1)[:2]


def test_a_certificate_stops_at_the_first_copy_that_fails() -> None:
    """Elsewhere half of the copies run, as they tell how far the errors spread."""
    certificate = replace(DRAWN, phase=Phase.CERTIFICATE)
    short, long = (judged([0.5, 1.5, 1.5, 1.5, 1.5], asked)[2] for asked in (certificate, DRAWN))
    assert short is not None and long is not None
    assert (1, 1, 2, 2) == (short.copies, short.failed, long.copies, long.failed)


def test_further_copies_are_of_the_samples_that_may_decide() -> None:
    """The second of three is far below the others, so three copies go without it."""
    first = [0.5, 0.1, 0.4]
    copied = [0.5, 0.1, 0.4, *[0.5, 0.4] * 2, 0.3, 1.5]
    verdict, error, stability = judged([*first, *copied], DRAWN, samples=3)
    assert (Verdict.FAIL, 1.5) == (verdict, error)
    assert stability is not None and (4, 1) == (stability.copies, stability.failed)


@pytest.mark.parametrize("copied", [[0.5, 0.2, 0.4], [0.5, 0.0, 0.4]])
def test_no_sample_is_left_out_that_may_come_near(copied: list[float]) -> None:
    """It has doubled on the first copy, or has no figure of which the law speaks."""
    errors = [0.5, 0.1, 0.4, *copied, *[0.5, 0.1, 0.4] * 3]
    assert (Verdict.PASS, 0.5) == judged(errors, DRAWN, samples=3)[:2]


def test_copies_that_hold_do_not_excuse_the_samples() -> None:
    """A plan that fails on what was given fails, and its copies are judged all the same."""
    verdict, error, stability = judged([1.5, 0.2, 0.2, 0.2, 0.2], DRAWN)
    assert (Verdict.FAIL, 1.5) == (verdict, error)
    assert stability is not None and 0 == stability.failed


def test_no_figure_of_no_copies() -> None:
    """Errors that are 0 or infinite have no logarithm, and a check may have no figure at all."""
    assert Stability(copies=2, failed=2) == Stability.of(2, [None, None])
    assert None is Stability.of(1, [0.0, math.inf]).jitter
    assert math.inf == Stability.of(1, [0.0, math.inf]).error_max


def lookup(path: Path) -> Path:
    """Write a model of integer input: rows of a table, multiplied and squashed."""
    rng = np.random.default_rng(0)
    constants = [
        numpy_helper.from_array(rng.standard_normal((16, 8)).astype(np.float32), "table"),
        numpy_helper.from_array(rng.standard_normal((8, 8)).astype(np.float32), "w"),
    ]
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], name="rows"),
        helper.make_node("MatMul", ["rows", "w"], ["product"], name="product"),
        helper.make_node("ReduceMean", ["product"], ["mean"], name="mean", keepdims=0),
        helper.make_node("Tanh", ["mean"], ["y"], name="squash"),
    ]
    ids = helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [4])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "lookup", [ids], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


def test_the_emulator_draws_again_by_its_factors(tmp_path: Path) -> None:
    """Scalars stay scalars, factors of one change nothing, and others round otherwise."""
    model = load_model(lookup(tmp_path / "lookup.onnx"))
    layers = len(model.table.candidates)
    plain, factored = EmulatedBackend(model), EmulatedBackend(model, factors=True)
    feed: Sample = {"ids": np.array([3, 1, 4, 1])}
    low, high = Plan.of(()), Plan.all_high(layers)
    for plan in (low, high):
        expected = plain.evaluate(plan, feed)["y"]
        found = factored.evaluate(plan, feed)["y"]
        assert expected.shape == found.shape == ()
        np.testing.assert_array_equal(expected, found)
    rng = np.random.default_rng(0)
    draws = [
        factored.evaluate(
            low, {**feed, FACTORS: (1 + 1e-3 * rng.standard_normal(layers)).astype(np.float32)}
        )["y"].item()
        for _ in range(8)
    ]
    assert len(set(draws)) > 1


def test_no_factor_is_on_an_index(tmp_path: Path) -> None:
    """Rows and columns, computed in floats, are exact in FP32: nothing rounds there."""
    proto = models.parse(
        """(int64[n] ids) => (float[n] y) <float wide = {64}, float zero = {0}> {
            f = Cast<to = 1>(ids) d = Div(f, wide) row = Floor(d) begin = Mul(row, wide)
            column = Sub(f, begin) i = Cast<to = 7>(row) j = Cast<to = 7>(column)
            a = Gather(table, i) b = Gather(table, j) s = Add(a, b)
            begins = Equal(column, zero) y = Where(begins, zero, s) }"""
    )
    table = {"table": np.arange(64, dtype=np.float32)}
    model = load_model(models.save(models.with_weights(proto, table), tmp_path))
    layers = len(model.table.candidates)
    feed: Sample = {"ids": np.array([64, 128, 4032, 4095])}
    (expected,) = reference_outputs(model, [feed])
    factors = np.full(layers, 1 - 1e-6, np.float32)
    emulator = EmulatedBackend(model, factors=True)
    found = emulator.evaluate(Plan.all_high(layers), {**feed, FACTORS: factors})
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-5)
    assert (found["y"] != expected["y"]).any()


def test_scores_behind_a_mask_of_integers_have_factors(tmp_path: Path) -> None:
    """They are rounded, whatever is added to them and compares them: copies tell of it."""
    model = models.load_text(
        """(int64[2] mask, float[2] x) => (float[2] y) <float low = {-1e4}, float zero = {0}> {
            scores = Exp(x) m = Cast<to = 1>(mask) bias = Mul(m, low) masked = Add(scores, bias)
            seen = Greater(masked, zero) y = Where(seen, masked, scores) }""",
        tmp_path,
    )
    assert {"m", "bias"} == whole_numbers(model).exact


def test_the_reference_of_a_copy_is_plain_onnx_runtimes(tmp_path: Path) -> None:
    """It opens when it is asked first, and again after a rest."""
    model = load_model(tiny.write_model(tmp_path / "tiny.onnx"))
    refer = ReferenceSession(model)
    (sample,) = tiny.samples()
    (expected,) = reference_outputs(model, [sample])
    for _ in range(2):
        np.testing.assert_array_equal(expected["v19"], refer(sample)["v19"])
        refer.rest()


def test_the_first_copies_of_a_draw_are_held_as_many_as_fit() -> None:
    """Of feeds of 16 MB the bound has four; only the others have their reference made again."""
    large = {"x": np.linspace(1.01, 2, 2**22, dtype=np.float32)}
    made: list[int] = []

    def refer(feed: Sample) -> Sample:
        made.append(feed["x"].size)
        return {"y": feed["x"][:1]}

    copies = Copies(samples={SampleSet.JUDGED: ([large], [large])}, count=5, refer=refer)
    for number in [*range(5), *range(5)]:
        copies.make(SampleSet.JUDGED, 1, number)
    assert 5 + 2 == len(made)
