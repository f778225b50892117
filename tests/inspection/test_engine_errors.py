"""What an engine shows of its tensors: which tensors they are, and what each of its parts adds."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import models
import tiny
from precision_bisect.backends.backend_plugin import failure
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.emulation.engine_errors import look_into
from precision_bisect.backends.emulation.error_forecasts import ErrorForecasts
from precision_bisect.backends.inspection.engine_layers import EngineLayer, EngineTensor
from precision_bisect.backends.inspection.shown_tensors import (
    ShownTensor,
    Written,
    written_by_kernels,
)
from precision_bisect.commandline.main import main
from precision_bisect.errors import RefusedError, UsageError
from precision_bisect.explaining.diagnosis.findings import Findings
from precision_bisect.explaining.diagnosis.instrument import Instrument
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.graphs.node_views import computed
from precision_bisect.options import Options
from precision_bisect.pipeline.engine_ranking import RankedByEngine
from precision_bisect.pipeline.explanation import Explained, seen_in_engine
from precision_bisect.pipeline.prepare import _check_ranking, prepare
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Sample
from precision_bisect.runs.results.causes import Cause
from precision_bisect.runs.results.tensor_errors import (
    TensorError,
    TensorErrors,
    read_tensor_errors,
)
from precision_bisect.runs.runfolder import TENSOR_ERRORS
from precision_bisect.trial import (
    Kind,
    Outcome,
    Phase,
    Proposal,
    SampleSet,
    TrialStatus,
    Verdict,
)
from run_folders import finding

CHAIN = """(float[8, 16] x) => (float[8, 16] y) <float[16, 16] w, float[16, 16] v> {
    [one] a = MatMul (x, w)
    [two] b = Tanh (a)
    [three] c = MatMul (b, v)
    [four] y = Add (c, a)
}"""
Floats = NDArray[np.float32]
PAIR = Pair(low="fp16", high="fp32")
FP16 = LOW_TYPES["fp16"]


def load_text(body: str, folder: Path) -> Model:
    """Return a model with random weights."""
    weights = {name: models.normal(16, 16, seed=i) for i, name in enumerate(("w", "v"), 10)}
    return load_model(models.save(models.with_weights(models.parse(body), weights), folder))


class Showing:
    """Shows the emulator's tensors as an engine shows its own: all, or only `some`."""

    def __init__(self, model: Model, some: Sequence[str] | None = None) -> None:
        self.plans: list[Plan] = []
        self._instrument = Instrument(model, PAIR)
        self._names = computed(model) if some is None else some

    def __call__(self, plan: Plan, feeds: Sequence[Sample]) -> list[list[ShownTensor]]:
        self.plans.append(plan)
        shown: list[list[ShownTensor]] = [[] for _ in feeds]
        for tensors in self._instrument.shown(self._names, feeds, plan):
            shown[tensors.sample] += [
                ShownTensor(name=name, nodes=(), tensors=(name,), values=array)
                for name, array in tensors.emulated.items()
            ]
        return shown


def feeds_of(*shape: int, count: int = 2) -> list[dict[str, Floats]]:
    return [{"x": models.normal(*shape, seed=seed)} for seed in range(count)]


def test_what_the_parts_add_makes_up_the_whole(tmp_path: Path) -> None:
    """With every tensor shown, the errors put into FP32 give the low engine's outputs."""
    model, feeds = load_text(CHAIN, tmp_path), feeds_of(8, 16)
    errors = look_into(model, FP16, feeds, Showing(model))
    forecasts, emulator = ErrorForecasts(model, errors, feeds), EmulatedBackend(model)
    for feed in feeds:
        exact = forecasts.evaluate(Plan.all_high(len(model.table.candidates)), feed)["y"]
        low = emulator.evaluate(Plan.of(()), feed)["y"]
        forecast = forecasts.evaluate(Plan.of(()), feed)["y"]
        assert np.abs(forecast - low).max() <= 0.1 * np.abs(low - exact).max()


def test_a_feed_with_nan_is_found_again(tmp_path: Path) -> None:
    """A copy of it is the same feed, though NaN equals nothing."""
    model, feeds = load_text(CHAIN, tmp_path), feeds_of(8, 16)
    forecasts = ErrorForecasts(model, look_into(model, FP16, feeds, Showing(model)), feeds)
    feeds[0]["x"][0, 0] = np.nan
    low = forecasts.evaluate(Plan.of(()), {"x": feeds[0]["x"].copy()})["y"]
    assert np.isnan(low).any() and not np.isnan(low).all()


def test_each_layer_alone_is_forecast_as_the_emulator_does(tmp_path: Path) -> None:
    """A layer alone low also rounds what it reads: no part of the whole engine's error."""
    model, feeds = load_text(CHAIN, tmp_path), feeds_of(8, 16)
    forecasts = ErrorForecasts(model, look_into(model, FP16, feeds, Showing(model)), feeds)
    emulator, everything = EmulatedBackend(model), Plan.all_high(len(model.table.candidates))
    exact = emulator.evaluate(everything, feeds[0])["y"]
    for layer in range(len(model.table.candidates)):
        plan = everything.without([layer])
        errors = [
            np.linalg.norm(backend.evaluate(plan, feeds[0])["y"] - exact)
            for backend in (emulator, forecasts)
        ]
        assert errors[0] == pytest.approx(errors[1], rel=0.3)


def test_layers_that_are_not_shown_share_their_part(tmp_path: Path) -> None:
    """A fused kernel is one part: a third of it low adds the root of a third of its error."""
    model, feeds = load_text(CHAIN, tmp_path), feeds_of(8, 16, count=1)
    errors = look_into(model, FP16, feeds, Showing(model, ["a", "y"]))
    assert ["a", "y"] == [part.tensor for part in errors.parts]
    assert [1, 3] == [len(part.layers) for part in errors.parts]
    forecasts, everything = ErrorForecasts(model, errors, feeds), Plan.all_high(4)
    exact, one, three = (
        forecasts.evaluate(everything.without(low), feeds[0])["y"] for low in ([], [1], [1, 2, 3])
    )
    # The sums round the last digits of FP32.
    np.testing.assert_allclose(one - exact, (three - exact) / np.sqrt(3), atol=1e-6)


def test_nan_is_told_where_it_is_born(tmp_path: Path) -> None:
    """The square overflows; what is behind it tells only once that is high."""
    body = """(float[4] x) => (float[4] y) {
        [scale] s = Mul (x, big)
        [square] q = Mul (s, s)
        [less] d = Sub (q, q)
        [end] y = Add (d, x)
    }"""
    model = models.load_text(body.replace("{", "<float big = {1e4}> {", 1), tmp_path)
    show, feeds = Showing(model), [{"x": np.array([1, 2, 3, 4], np.float32)}]
    errors = look_into(model, FP16, feeds, show)
    assert ["square"] == errors.tensors.born
    assert ["q", "d", "y"] == [e.tensor for e in errors.tensors.tensors if not e.finite]
    assert [{*range(4)}, set(), {1}, {1, 2}] == [{*plan.kept} for plan in show.plans]
    assert np.isnan(
        ErrorForecasts(model, errors, feeds).evaluate(Plan.of(()), feeds[0])["y"]
    ).all()


def test_a_tensor_that_is_another_than_it_seems_does_not_count(tmp_path: Path) -> None:
    """Names and shapes of an engine may mislead; with every layer high it must agree with FP32."""
    model, feeds = load_text(CHAIN, tmp_path), feeds_of(8, 16, count=1)
    true = Showing(model)

    def shifted(plan: Plan, feeds: Sequence[Sample]) -> list[list[ShownTensor]]:
        values = {tensor.name: tensor.values for tensor in true(plan, feeds)[0]}
        others = dict(zip(values, [*[*values][1:], "a"], strict=True))
        return [
            [
                ShownTensor(name=other, nodes=(), tensors=(name,), values=values[other])
                for name, other in others.items()
            ]
        ]

    with pytest.raises(RefusedError, match="agrees with FP32"):
        look_into(model, FP16, feeds, shifted)


def test_tensors_are_known_by_the_kernel_that_writes_them(tmp_path: Path) -> None:
    """TensorRT-RTX calls what a kernel reads by what it makes; Casts of ours are followed."""
    graph = onnx.parser.parse_graph(
        """g (float[4] x) => (float[4] y) {
            [cast_x] h = Cast <to = 10> (x)
            [first] a = Relu (h)
            [second] b = Sqrt (a)
            [cast_b] y = Cast <to = 1> (b)
        }"""
    )
    for number, name in ((0, "x/fp16"), (3, "b/fp32")):
        graph.node[number].name = f"precision_bisect/cast/{name}"

    def kernel(writes: str, *nodes: str) -> EngineLayer:
        return EngineLayer(
            name=writes, outputs=(EngineTensor(name=writes, dtype="fp16", dims=(4,)),), nodes=nodes
        )

    written = written_by_kernels(
        [
            kernel("b.1_3_myl0", "precision_bisect/cast/x/fp16", "first"),
            kernel("y", "second", "precision_bisect/cast/b/fp32"),
        ],
        graph,
    )
    assert Written(nodes=("first",), tensors=("a",)) == written["b.1_3_myl0"]
    assert Written(nodes=("second",), tensors=("b",)) == written["y"]


def test_a_diagnosis_tells_what_the_engine_has_shown(tmp_path: Path) -> None:
    """A layer in which NaN is born in the engine is proven; others have the engine's error."""
    errors = TensorErrors(
        tensors=[
            TensorError(tensor="a", layer="one", rms=1e-3, largest=0.01),
            TensorError(tensor="b", layer="two", rms=float("inf"), largest=1.0, finite=False),
        ],
        of_tensors=3,
        born=["two"],
    )
    errors.save(tmp_path)
    assert errors == read_tensor_errors(tmp_path)
    findings = [
        finding(layer, "it rounds", cause=Cause.ROUNDING) for layer in ("one", "two", "three")
    ]
    seen = seen_in_engine(Explained(Findings(low="fp16", layers=findings)), errors).findings
    assert [
        "it rounds; in the engine itself it is 0.001 off, with what comes in",
        "it rounds; NaN or Inf is born here in the engine itself",
        "it rounds",
    ] == [str(finding.evidence) for finding in seen.layers]
    assert [1e-3, np.inf, None] == [f.figures.get("engine_error") for f in seen.layers]


class ShowingBackend(EmulatedBackend):
    """The emulator as a backend whose engines show their tensors, or fail to be built."""

    def __init__(self, model: Model, *, fails: bool = False) -> None:
        super().__init__(model)
        self._show = Showing(model)
        self._fails = fails

    def show(self, plan: Plan, feeds: Sequence[Sample]) -> list[list[ShownTensor]]:
        """See `ShowsTensors`."""
        if self._fails:
            raise failure(TrialStatus.BUILD_FAILED, "no tactic")
        return self._show(plan, feeds)


@pytest.mark.parametrize("fails", [False, True])
def test_trials_of_a_ranking_are_evaluated_by_the_engines_errors(
    tmp_path: Path, fails: bool
) -> None:
    """All others are not; nor are they where the engine shows nothing, which the notes tell."""
    (tmp_path / "run").mkdir()
    options = Options(
        model=tiny.write_model(tmp_path / "model.onnx"), out=tmp_path / "run", backend="emulated"
    )
    prepared = prepare(options, lambda event: None, tmp_path / "work")
    model = prepared.case.model
    asked: list[Proposal] = []

    def otherwise(proposal: Proposal) -> Outcome:
        asked.append(proposal)
        return Outcome(status=TrialStatus.FINISHED, verdict=Verdict.PASS, error=0.5)

    prepared = replace(prepared, here=ShowingBackend(model, fails=fails))
    ranked = RankedByEngine(prepared=prepared, otherwise=otherwise)
    everything = Plan.all_high(len(model.table.candidates))
    square = model.table.plan_of(["n4_Mul"])
    ranking = Proposal(
        plan=everything.without(square.kept),
        kind=Kind.PREDICT,
        phase=Phase.RANKING,
        samples=SampleSet.RANKING,
    )
    judged = replace(ranking, kind=Kind.JUDGE)
    outcomes = [ranked(judged), ranked(ranking)]
    assert asked == ([judged, ranking] if fails else [judged])
    assert (tmp_path / "run" / TENSOR_ERRORS).exists() is not fails
    if fails:
        assert ["no tactic" in note for note in outcomes[1].evidence.notes] == [True]
    else:
        assert outcomes[1].failed and (outcomes[1].error or 0.0) > 0.01


def test_there_must_be_an_engine_to_look_into(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The emulator shows what it forecasts anyway."""
    model = tiny.write_model(tmp_path / "model.onnx")
    arguments = ["--backend", "emulated", "--rank-by", "engine", "--out", str(tmp_path / "run")]
    assert 2 == main([str(model), *arguments])
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("not for the emulator; leave it out")
    assert not (tmp_path / "run").exists()


def test_a_loop_is_not_ranked_by_single_inferences() -> None:
    """Errors of N steps are no errors of one."""
    with pytest.raises(UsageError, match="single inferences, not at a loop"):
        _check_ranking(
            Options(model=Path("m.onnx"), rank_by="engine", steps=3, feed=["y:x"]), emulated=False
        )
