"""The Python API, as its docstring promises it."""

import inspect
import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import precision_bisect
from effort import nightly
from models import OVERFLOW, parse, save, with_weights
from precision_bisect.api import FindOptions
from precision_bisect.commandline.main import main
from precision_bisect.options import Options
from precision_bisect.runs.monitoring.events import Event, Warned
from precision_bisect.runs.runfolder import (
    DIAGNOSIS,
    EVENTS,
    GIVEN_DATA,
    GIVEN_MODEL,
    REPORT,
    RESULT,
    STATUS,
)
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.flags import choices_of, flag_name, flags_of
from precision_bisect.settings.keywords import in_keywords

GIVEN = (
    "(float[4096] x) => (float[4096] y) <float k = {0.00333333333}>"
    " { s = Mul(x, x) t = Mul(s, k) y = Mul(t, w) }"
)
LADDER = ("fp16", "bf16", "fp32")
SAMPLE = {"x": np.array([300.0], np.float32)}


def test_layers_can_be_listed_again_and_after_a_search(tmp_path: Path) -> None:
    """No submodule takes the place of a function of the package."""
    model = save(parse(OVERFLOW), tmp_path)
    before = precision_bisect.layers(model)
    assert before == precision_bisect.layers(model)
    result = precision_bisect.find(model, inputs=[SAMPLE], out=tmp_path / "run")
    assert before == precision_bisect.layers(model)
    assert [layer.name for layer in before if layer.exclusion is None] == list(result.kept)


def test_a_search_leaves_what_the_command_does(tmp_path: Path) -> None:
    """The run folder has the page and the diagnosis; without the page the result stands."""
    model, out = save(parse(OVERFLOW), tmp_path), tmp_path / "run"
    events: list[Event] = []
    result = precision_bisect.find(model, inputs=[SAMPLE], out=out, tol=1e-2)
    assert {REPORT, DIAGNOSIS, RESULT, EVENTS, STATUS} <= {path.name for path in out.iterdir()}
    (out / REPORT).unlink()
    (out / REPORT).mkdir()
    again = precision_bisect.find(
        model, inputs=[SAMPLE], out=out, tol=1e-2, resume=True, observer=events.append
    )
    assert result.kept == again.kept
    warnings = [event.message for event in events if isinstance(event, Warned)]
    assert any(REPORT in message for message in warnings)


def test_a_finished_run_is_loaded_as_it_was_returned(tmp_path: Path) -> None:
    """By its folder as text or path, and by its `result.json`."""
    model, out = save(parse(OVERFLOW), tmp_path), tmp_path / "run"
    result = precision_bisect.find(model, inputs=[SAMPLE], out=out, tol=1e-2)
    for run in (out, str(out), out / RESULT):
        again = precision_bisect.load(run)
        assert (str(result), result.to_json()) == (str(again), again.to_json())


@pytest.mark.parametrize("run", [None, "", 3, "nowhere", "."])
def test_what_is_no_run_is_refused(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad argument, a path that leads nowhere, a folder without a run: each says what to do."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(precision_bisect.PrecisionBisectError) as refusal:
        precision_bisect.load(run)
    assert refusal.value.hint


def test_every_public_name_is_there() -> None:
    """What __all__ promises can be had, and the version as well."""
    for name in (*precision_bisect.__all__, "__version__"):
        assert getattr(precision_bisect, name)


def test_every_option_is_a_keyword() -> None:
    """`find` takes every field of Options as it is typed there: docs/make_find_options.py.

    Figures in a unit may be texts, too, under the names of their flags.
    """
    own = {"model", "tol", "inputs", "out"}
    keywords = {field.name: field.type for field in fields(Options) if field.name not in own}
    units = ("max_time", "max_latency", "trial_timeout", "trial_memory", "disk_cap")
    assert FindOptions.__annotations__ == keywords | dict.fromkeys(units, str)


@pytest.mark.parametrize("inputs", [[], {}, iter([]), [3.0], [[SAMPLE["x"]]]])
def test_inputs_of_the_wrong_shape_are_named(tmp_path: Path, inputs: Any) -> None:
    """No samples, arrays without names, and samples that lack an input end in no foreign error."""
    model = save(parse(OVERFLOW), tmp_path)
    with pytest.raises(precision_bisect.PrecisionBisectError, match=r"dict|the model's inputs"):
        precision_bisect.find(model, inputs=inputs, out=tmp_path / "run")


@pytest.mark.parametrize("inputs", [SAMPLE, (each for each in [SAMPLE]), {"a": SAMPLE}.values()])
def test_samples_may_be_one_or_come_one_by_one(tmp_path: Path, inputs: Any) -> None:
    """A sample, a generator and a view are what a list of the samples is: one run goes on."""
    model, out = save(parse(OVERFLOW), tmp_path), tmp_path / "run"
    listed = precision_bisect.find(model, inputs=[SAMPLE], out=out, tol=1e-2)
    again = precision_bisect.find(model, inputs=inputs, out=out, tol=1e-2, resume=True)
    assert listed.fingerprint == again.fingerprint


@pytest.mark.parametrize(
    ("options", "limit"), [({}, 0), *nightly(({}, 2**31 - 1)), ({"ladder": LADDER}, 2**31 - 1)]
)
def test_a_model_needs_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any, limit: int
) -> None:
    """It is in the run folder, beyond protobuf's limit with a data file, and goes on there."""
    monkeypatch.setattr("precision_bisect.graphs.typed.model_files._LARGEST_FILE", limit)
    monkeypatch.chdir(tmp_path)
    given = with_weights(parse(GIVEN), {"w": np.linspace(1, 2, 4096, dtype=np.float32)})
    before = given.SerializeToString()
    sample = {"x": np.full(4096, 300.0, np.float32)}
    options = {"inputs": sample, "tol": 0.05, **options}
    result = precision_bisect.find(given, **options)
    assert before == given.SerializeToString()
    assert result.kept
    assert Path(f"{GIVEN_MODEL}.precision-bisect") == result.out
    file = result.out / GIVEN_MODEL
    assert (limit == 0) == file.with_name(GIVEN_DATA).exists()
    for model in (given, file):
        again = precision_bisect.find(model, out=result.out, resume=True, **options)
        assert (result.kept, result.fingerprint) == (again.kept, again.fingerprint)
    assert 0 == main(["explain", str(result.out)])
    other = parse(OVERFLOW)
    with pytest.raises(precision_bisect.PrecisionBisectError, match=r"of another|over a ladder"):
        precision_bisect.find(other, inputs=SAMPLE, out=result.out, resume=True)
    precision_bisect.find(other, inputs=SAMPLE, out=result.out, overwrite=True)
    assert ["x"] == [each.name for each in onnx.load(file).graph.input]


def test_a_model_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """An empty one, one whose weights are elsewhere, nonsense, no model: no folder is made."""
    elsewhere = with_weights(parse(GIVEN), {"w": np.zeros(4096, np.float32)})
    onnx.save(elsewhere, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    short = with_weights(parse(GIVEN), {"w": np.zeros(4096, np.float32)})
    short.graph.initializer[0].raw_data = b"123"
    unloaded = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    for given in (onnx.ModelProto(), unloaded, short, 3, None):
        with pytest.raises(precision_bisect.PrecisionBisectError) as refusal:
            precision_bisect.find(given, out=tmp_path / "run")  # type: ignore[arg-type] # no model
        assert refusal.value.hint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tolerance": 1}, "find() has no option 'tolerance'; did you mean tol? help(find) lists"),
        ({"stratgy": "ddmin"}, "no option 'stratgy'; did you mean strategy?"),
        ({"zzz": 1}, "find() has no option 'zzz'; help(find) lists them"),
        ({"tol": "1e-2"}, "tol cannot be '1e-2'; give a number, or a dict of numbers by output"),
        ({"workers": "2"}, "workers cannot be '2'; give a value of type int"),
        ({"resume": "yes"}, "resume cannot be 'yes'; give a value of type bool"),
        ({"inputs": 3}, "inputs cannot be 3; give a path, a dict of arrays, or several"),
        (
            {"input_shapes": {"x": 3}},
            "input_shapes cannot be {'x': 3}; give a tuple by input name",
        ),
        ({"out": 3}, "out cannot be 3; give a path"),
        ({"engine": {}}, "engine cannot be {}; give a value of type EngineSettings"),
        ({"low": "fp64"}, "low cannot be 'fp64'; choose fp16, bf16, int8, fp8"),
    ],
)
def test_bad_options_are_errors_of_ours(options: dict[str, Any], said: str) -> None:
    """A wrong name and a wrong type say what would be right."""
    with pytest.raises(precision_bisect.PrecisionBisectError) as raised:
        precision_bisect.find("m.onnx", **options)
    assert said in raised.value.one_line()


@pytest.mark.parametrize("value", [b"x" * 10**6, ["x"] * 10**6], ids=["bytes", "list"])
@pytest.mark.parametrize("name", ["model", "inputs", "out", "keep", "observer", "check", "engine"])
def test_a_refusal_is_not_as_long_as_what_is_refused(
    name: str, value: object, tmp_path: Path
) -> None:
    """A model's bytes, say, are not printed."""
    given: dict[str, Any] = {"model": save(parse(OVERFLOW), tmp_path), "out": tmp_path / "run"}
    with pytest.raises(precision_bisect.PrecisionBisectError) as caught:
        precision_bisect.find(**{**given, name: value})
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize("name", [GIVEN_MODEL, "model.mixed.onnx"])
def test_a_model_in_the_folder_that_is_replaced_is_refused(name: str, tmp_path: Path) -> None:
    """It would be removed."""
    model, out = save(parse(OVERFLOW), tmp_path), tmp_path / "run"
    precision_bisect.find(onnx.load(model), inputs=SAMPLE, out=out)
    (out / name).write_bytes(model.read_bytes())
    with pytest.raises(precision_bisect.PrecisionBisectError, match=f"would remove .*{name}"):
        precision_bisect.find(out / name, inputs=SAMPLE, out=out, overwrite=True)
    assert (out / name).exists()
    assert precision_bisect.find(onnx.load(model), inputs=SAMPLE, out=out, overwrite=True).kept


def test_help_tells_the_options() -> None:
    """The signature has every option with its default; dir() has what can be used."""
    shown = str(inspect.signature(precision_bisect.find))
    for field in fields(Options):
        assert f" {field.name}: " in shown or field.name == "model"
    assert "backend: str = 'auto'" in shown
    assert "<function" not in shown and "ForwardRef" not in shown
    assert set(precision_bisect.__all__) <= set(dir(precision_bisect))


def test_a_result_prints_as_a_line(tmp_path: Path) -> None:
    """What was found, the error, and where everything is."""
    model = save(parse(OVERFLOW), tmp_path)
    out = tmp_path / "run"
    result = precision_bisect.find(model, inputs=[SAMPLE], out=out, tol=1e-2)
    kept = f"found: {len(result.kept)} of {result.candidates} layers stay FP32, error "
    assert str(result).startswith(kept)
    assert str(result).endswith(f", in {out}")
    assert f"<Result {result}>" == repr(result)


def test_a_result_of_made_up_inputs_says_so(tmp_path: Path) -> None:
    """Nobody sees the command's warning here."""
    model = save(parse(OVERFLOW), tmp_path)
    result = precision_bisect.find(model, out=tmp_path / "run", max_trials=1)
    assert ", on made-up inputs, in " in str(result)


def test_progress_is_told_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outside of a terminal as in a log, beside an observer; nothing without being asked."""
    model, events = save(parse(OVERFLOW), tmp_path), list[Event]()
    for progress in (True, False):
        precision_bisect.find(
            model,
            inputs=SAMPLE,
            out=tmp_path / f"{progress}",
            progress=progress,
            observer=events.append,
        )
        out, err = capsys.readouterr()
        assert out == ""
        assert progress == ("every layer high: pass" in err)
        assert progress == bool(err)
        assert events


def test_an_error_prints_what_to_do() -> None:
    """A traceback's last line has the hint, also of an error that came from another process."""
    with pytest.raises(precision_bisect.PrecisionBisectError) as raised:
        precision_bisect.find("absent.onnx")
    assert "no such file: absent.onnx; check the path" == str(raised.value)
    assert str(raised.value) == str(pickle.loads(pickle.dumps(raised.value)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"copies": 2, "copies_failing": 2}, "copies_failing=2 is no fewer than copies=2; allow"),
        ({"trial_timeout_s": 1.0, "isolate": "never"}, "trial_timeout_s needs trials in child"),
        ({"resume": True, "overwrite": True}, "resume=True and overwrite=True exclude each other"),
        ({"check": "top1", "metric": "l2"}, "check and metric exclude each other; choose one"),
        (
            {"backend": "emulated", "keep_engines": True},
            "or choose backend='tensorrt' or tensorrt",
        ),
        ({"optuna_storage": "sqlite:///a"}, "leave it out, or give strategy pareto"),
        ({"ladder": ("fp16", "fp32"), "until": "culprits"}, "has no use for ladder; leave one"),
        ({"seed": -1}, "seed=-1 is below 0"),
        ({"metric": "l2"}, "metric='l2' has no default tolerance; give tol"),
        ({"check": "top1"}, "check top1 has no default tolerance; give tol=0.01, the share"),
        ({"input_shapes": {"z": (1,)}, "inputs": None}, "input_shapes names 'z', which is no"),
        ({"engine": EngineSettings(opt_shapes={"z": (1,)})}, "engine.opt_shapes names 'z'"),
        ({"out": "mine"}, "choose another out, or move what is there away"),
        ({"inputs": "odd"}, "give inputs load_data.py"),
    ],
)
def test_refusals_name_keywords(
    options: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a refusal asks for can be typed in Python: no flag is in it."""
    monkeypatch.chdir(tmp_path)
    for name in ("mine/ledger.sqlite", "odd/a.txt"):
        Path(name).parent.mkdir()
        Path(name).write_text("somebody's")
    model = save(parse(OVERFLOW), tmp_path)
    with pytest.raises(precision_bisect.PrecisionBisectError) as refusal:
        precision_bisect.find(model, **{"inputs": SAMPLE, **options})
    assert said in str(refusal.value)
    assert "--" not in str(refusal.value)
    assert getattr(refusal.value, "__notes__", []) == [refusal.value.further] * (
        "odd" in options.values()
    )


@pytest.mark.parametrize("settings", [Options, EngineSettings])
def test_every_flag_has_its_keyword(settings: type) -> None:
    """Wherever a sentence names a flag, alone or with a value, Python has that field."""
    for each in fields(settings):
        for flag in flags_of(each):
            name = flag.name or flag_name(each.name)
            keyword = f"{'engine.' * (settings is EngineSettings)}{each.name}"
            assert in_keywords(f"leave {name}, or", Options).startswith(f"leave {keyword}")
            for choice in () if flag.const else choices_of(each):
                assert f"give {keyword}={choice!r}." == in_keywords(
                    f"give {name} {choice}.", Options
                )
    for other in (
        "dask worker --nthreads 1",
        "a--tol",
        "--tolerance 1",
        "polygraphy --save-inputs",
    ):
        assert other == in_keywords(other, Options)


def test_warnings_name_keywords(tmp_path: Path) -> None:
    """An observer is told what a caller of Python can do."""
    model, events = save(parse(OVERFLOW), tmp_path), list[Event]()
    precision_bisect.find(model, out=tmp_path / "run", max_trials=1, observer=events.append)
    (first, *others) = (event.message for event in events if isinstance(event, Warned))
    assert first.startswith("no inputs given")
    assert not any("--" in each for each in others)
