"""The reference from a file: read, checked, and what a run makes of it."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from effort import nightly
from models import parse, with_weights
from precision_bisect.api import run
from precision_bisect.backends.backend_plugin import Chosen
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.errors import (
    InputError,
    ModelError,
    PrecisionBisectError,
    RunFolderError,
    UsageError,
)
from precision_bisect.execution import local_executor
from precision_bisect.graphs.fp32_outputs import reference_outputs
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.judging.inputs.loops import PLAIN
from precision_bisect.judging.inputs.reference import read_outputs
from precision_bisect.options import Options
from precision_bisect.pipeline.verifying import one_build
from precision_bisect.pipeline.verifying.one_build import engine_outputs, run_in_child
from precision_bisect.plan import Plan
from precision_bisect.protocols import Engine, Sample
from precision_bisect.runs.monitoring.events import Event, Warned, ignore
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.runfolder import REFERENCE
from precision_bisect.settings.sample_options import ENGINE_REFERENCE
from precision_bisect.trial import Outcome, TrialStatus

BODY = (
    "(float[2,4] x) => (float[2,4] y, int64[2,4] i)"
    " { h = Tanh(x) p = Relu(h) e = Mul(p, c) y = Mul(e, d) i = Cast<to=7>(y) }"
)
Arrays = Mapping[str, NDArray[Any]]


def write_model(path: Path, op_type: str = "Relu") -> Path:
    """Write a model that overflows behind its Relu, which may be called otherwise."""
    weights = {"c": np.array(1e6, np.float32), "d": np.array(1e-6, np.float32)}
    proto = with_weights(parse(BODY), weights)
    proto.graph.node[1].op_type = op_type
    onnx.save(proto, path)
    return path


@pytest.fixture
def feeds() -> list[Sample]:
    """Return three samples."""
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(2, 4)).astype(np.float32)} for _ in range(3)]


@pytest.fixture
def outputs(tmp_path: Path, feeds: list[Sample]) -> list[Sample]:
    """Return what the model makes of the samples."""
    return reference_outputs(load_model(write_model(tmp_path / "exact.onnx")), feeds)


def stored(folder: Path, outputs: Sequence[Arrays]) -> Path:
    """Store the outputs of each sample as a .npz in a folder."""
    folder.mkdir()
    for number, sample in enumerate(outputs):
        np.savez(folder / f"{number}.npz", **sample)  # type: ignore[arg-type]  # no allow_pickle
    return folder


def as_polygraphy(path: Path, outputs: Sequence[Arrays], *runners: str) -> Path:
    """Store the outputs as `polygraphy run --save-outputs` does."""
    from polygraphy.comparator import RunResults

    results = RunResults()
    for runner in runners:
        results.add([dict(sample) for sample in outputs], runner_name=runner)
    results.save(str(path))
    return path


def test_both_kinds_of_files_give_the_outputs(tmp_path: Path, outputs: list[Sample]) -> None:
    """In the model's order and types, without what is no output of the model."""
    model = load_model(tmp_path / "exact.onnx")
    wide = [{"more": each["y"], **each, "y": each["y"].astype(np.float64)} for each in outputs]
    for path in (
        stored(tmp_path / "npz", wide),
        as_polygraphy(tmp_path / "outputs.json", wide, "pytorch"),
    ):
        found = read_outputs(path, model, 3)
        for got, want in zip(found, outputs, strict=True):
            assert ["y", "i"] == list(got)
            assert np.float32 == got["y"].dtype
            assert all(np.array_equal(got[name], want[name]) for name in want)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda outputs: outputs[:2], "holds the outputs of 2 samples, and --inputs 3"),
        (lambda outputs: [{"y": o["y"]} for o in outputs], "lacks i for sample 0"),
        (
            lambda outputs: [{**o, "i": o["y"]} for o in outputs],
            "output 'i' of sample 0 is float32, and the model has int64",
        ),
        (
            lambda outputs: [{**o, "i": np.full((2, 4), "word")} for o in outputs],
            "output 'i' of sample 0 is str128, and the model has int64",
        ),
        (
            lambda outputs: [{**o, "i": np.zeros((2, 4), "V8")} for o in outputs],
            "output 'i' of sample 0 is void64, and the model has int64",
        ),
        (
            lambda outputs: [{**o, "i": np.zeros((2, 4), np.complex64)} for o in outputs],
            "output 'i' of sample 0 is complex64, and the model has int64",
        ),
        (
            lambda outputs: [{**o, "i": np.zeros((2, 4), "M8[s]")} for o in outputs],
            "output 'i' of sample 0 is datetime64[s], and the model has int64",
        ),
        (
            lambda outputs: [{**o, "i": np.full((2, 4), 2**64 - 1, np.uint64)} for o in outputs],
            "output 'i' of sample 0 holds values that int64 does not have",
        ),
        (
            lambda outputs: [*outputs[:2], {**outputs[2], "y": np.ones((1, 4), np.float32)}],
            "output 'y' of sample 2 has the shape (1, 4), but the model has (2, 4)",
        ),
    ],
)
def test_outputs_of_something_else_are_refused(
    tmp_path: Path,
    outputs: list[Sample],
    change: Callable[[Sequence[Sample]], Sequence[Arrays]],
    said: str,
) -> None:
    """Another number, name, type or shape is one line."""
    path = stored(tmp_path / "npz", change(outputs))
    with pytest.raises(InputError) as caught:
        read_outputs(path, load_model(tmp_path / "exact.onnx"), 3)
    assert said in caught.value.one_line()


def test_outputs_of_several_runners_are_refused(tmp_path: Path, outputs: list[Sample]) -> None:
    """Nothing says which of them is the reference."""
    path = as_polygraphy(tmp_path / "outputs.json", outputs, "trt", "onnxrt")
    with pytest.raises(InputError, match="has outputs of several runners: trt, onnxrt"):
        read_outputs(path, load_model(tmp_path / "exact.onnx"), 3)


def warnings_of(options: Options) -> tuple[Any, list[str]]:
    """Run, and return the result with the warnings."""
    said: list[str] = []

    def observe(event: Event) -> None:
        if isinstance(event, Warned):
            said.append(event.message)

    return run(options, observe), said


def test_a_run_judges_by_the_given_reference(
    tmp_path: Path, feeds: list[Sample], outputs: list[Sample]
) -> None:
    """Its answer is that of its own reference; copies, which have none, are left out and said."""
    path = as_polygraphy(tmp_path / "outputs.json", outputs, "pytorch")
    asked = Options(
        model=tmp_path / "exact.onnx",
        out=tmp_path / "run",
        inputs=feeds,
        reference=path,
        backend="emulated",
        tol=1e-2,
    )
    result, said = warnings_of(asked)
    assert (Status.FOUND, ["node_of_e", "node_of_y"]) == (result.status, list(result.kept))
    assert result.stability is None
    assert any("judged on the samples alone" in each for each in said)
    assert not any("far from what ONNX Runtime computes" in each for each in said)
    as_polygraphy(path, outputs[::-1], "pytorch")
    with pytest.raises(RunFolderError, match="another --reference"):
        run(replace(asked, resume=True), ignore)
    swapped, said = warnings_of(replace(asked, out=tmp_path / "swapped"))
    assert Status.NOT_PRECISION is swapped.status
    assert any("check the order of the samples" in each for each in said)


def test_a_reference_needs_its_samples(tmp_path: Path, outputs: list[Sample]) -> None:
    """Outputs of inputs that are made up in each run are of no use."""
    asked = Options(
        model=tmp_path / "exact.onnx",
        out=tmp_path / "run",
        reference=stored(tmp_path / "npz", outputs),
        backend="emulated",
    )
    with pytest.raises(UsageError, match="--reference is of samples that are given"):
        run(asked, ignore)


class PluginBackend:
    """An engine that knows the operator that ONNX Runtime does not: it runs the exact model.

    That one's Relu, which stands for the plugin, stays high.
    """

    name = "tensorrt"
    emulated: ClassVar[bool] = False

    def __init__(self, exact: Model) -> None:
        self._exact = exact.table.names
        self._emulator = EmulatedBackend(exact, "fp16", 1)
        self.names: Sequence[str] = ()
        self.built: list[Plan] = []

    def versions(self) -> Mapping[str, str]:
        """Return nothing that results depend on."""
        return {}

    def unbuildable(self) -> Mapping[Any, str]:
        """Return nothing: every candidate has a low form."""
        return {}

    def build(self, plan: Plan, *, afresh: bool = False) -> Engine:
        """Note the plan and build it."""
        self.built.append(plan)
        low = {name for index, name in enumerate(self.names) if index not in plan.kept}
        kept = Plan.of(index for index, name in enumerate(self._exact) if name not in low)
        return self._emulator.build(kept, afresh=afresh)


def plugin_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **asked: Any
) -> tuple[PluginBackend, Any, list[str]]:
    """Run the model with a plugin's operator on an engine that has the plugin."""
    backend = PluginBackend(load_model(tmp_path / "exact.onnx"))

    def make(model: Model) -> PluginBackend:
        backend.names = model.table.names
        return backend

    chosen = Chosen(name="tensorrt", make=make, why="")
    for user in (local_executor, one_build):
        monkeypatch.setattr(user, "choose_backend", lambda *_, **__: chosen)
    monkeypatch.setattr(one_build, "pick_backend", lambda _: ("tensorrt", ""))
    path = write_model(tmp_path / "plugin.onnx", "Relu_TRT")
    result, said = warnings_of(
        Options(model=path, out=tmp_path / "run", isolate="never", tol=1e-2, **asked)
    )
    return backend, result, said


def test_a_model_with_a_plugin_is_judged_without_onnx_runtime(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    feeds: list[Sample],
    outputs: list[Sample],
) -> None:
    """Layers are ranked by builds, and the answer is that of the model that all others know."""
    backend, result, said = plugin_run(
        tmp_path, monkeypatch, inputs=feeds, reference=stored(tmp_path / "npz", outputs)
    )
    assert (Status.FOUND, ["node_of_e", "node_of_y"]) == (result.status, list(result.kept))
    assert any(each.startswith("nothing forecasts, since ONNX Runtime") for each in said)
    assert 0 == result.evaluations
    assert result.builds > 0
    assert len(backend.built) >= result.builds
    assert "broken" != result.deployment.recheck.outcome


@pytest.mark.parametrize("given", [True, *nightly(False)])
def test_the_engine_with_every_layer_high_is_the_reference(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    feeds: list[Sample],
    outputs: list[Sample],
    given: bool,
) -> None:
    """It is built once, and its outputs are kept: a run that goes on builds it no more."""
    asked = {"inputs": feeds if given else None, "reference": ENGINE_REFERENCE}
    backend, result, said = plugin_run(tmp_path, monkeypatch, **asked)
    assert (Status.FOUND, ["node_of_e", "node_of_y"]) == (result.status, list(result.kept))
    assert any("judged on the samples alone" in each for each in said)
    assert Plan.all_high(len(backend.names)) == backend.built[0]
    model, kept = load_model(tmp_path / "exact.onnx"), tmp_path / "run" / REFERENCE
    found = read_outputs(kept, model, 3 if given else 4)
    if given:
        np.testing.assert_array_equal(found[2]["y"], outputs[2]["y"])
    resumed, again, _ = plugin_run(tmp_path, monkeypatch, resume=True, **asked)
    assert (result.kept, []) == (again.kept, resumed.built[:1])


def test_an_engine_runs_in_a_child_process(
    tmp_path: Path, feeds: list[Sample], outputs: list[Sample]
) -> None:
    """What it gives comes back as it is; the emulator stands for an engine that needs a GPU."""
    order = Options(model=tmp_path / "exact.onnx", backend="emulated")
    ran = run_in_child(order, feeds, PLAIN, tmp_path)
    assert not isinstance(ran, Outcome)
    np.testing.assert_allclose(ran[2]["y"], outputs[2]["y"], rtol=1e-6)
    # The watch looks 20 times a second: so many samples last longer anywhere.
    lost = run_in_child(replace(order, trial_timeout_s=1e-3), feeds * 20_000, PLAIN, tmp_path)
    assert isinstance(lost, Outcome) and lost.status is TrialStatus.TIMED_OUT


def test_an_engine_that_fails_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feeds: list[Sample], outputs: list[Sample]
) -> None:
    """Without a reference there is nothing to judge by; the engine's own words are said."""
    del outputs
    lost = Outcome(status=TrialStatus.BUILD_FAILED, message="no such plugin")
    monkeypatch.setattr(one_build, "pick_backend", lambda _: ("tensorrt", ""))
    monkeypatch.setattr(one_build, "run_in_child", lambda *_: lost)
    model = load_model(tmp_path / "exact.onnx")
    options = Options(model=model.path, reference=ENGINE_REFERENCE)
    with pytest.raises(
        ModelError, match="tensorrt cannot build or run the model in FP32: no such"
    ):
        engine_outputs(options, model, feeds, tmp_path, PLAIN)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"backend": "emulated"}, "needs a backend that builds engines on this machine"),
        ({"executor": "dask"}, "needs a backend that builds engines on this machine"),
    ],
)
def test_the_reference_of_an_engine_needs_an_engine_here(
    tmp_path: Path, feeds: list[Sample], outputs: list[Sample], asked: dict[str, Any], said: str
) -> None:
    """What is missing is one line."""
    del outputs
    model = load_model(tmp_path / "exact.onnx")
    options = Options(model=model.path, reference=ENGINE_REFERENCE, **asked)
    with pytest.raises(UsageError, match=said):
        engine_outputs(options, model, feeds, tmp_path, PLAIN)


def test_without_an_engine_such_a_model_is_refused(
    tmp_path: Path, feeds: list[Sample], outputs: list[Sample]
) -> None:
    """The emulator runs on ONNX Runtime; that TensorRT is missing is said, and where to cut."""
    asked = Options(
        model=write_model(tmp_path / "plugin.onnx", "Relu_TRT"),
        out=tmp_path / "run",
        inputs=feeds,
        reference=stored(tmp_path / "npz", outputs),
        backend="emulated",
    )
    with pytest.raises(PrecisionBisectError) as caught:
        run(asked, ignore)
    said = caught.value.one_line()
    assert (
        "ONNX Runtime cannot run the model (ai.onnx:Relu_TRT), and no TensorRT runs here" in said
    )
    assert "--reference" not in said
    cut = re.findall(r"--(?:outputs|inputs) (\S+?):(?:auto|SHAPE)", said)
    (plugin,) = [node for node in onnx.load(asked.model).graph.node if node.op_type == "Relu_TRT"]
    assert [plugin.input[0], plugin.output[0]] == cut
