"""Options go through JSON and come back as they were: a run is reopened by nothing else."""

import json
import math
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_bisect.errors import UsageError
from precision_bisect.options import Options
from precision_bisect.runs import plain_json
from precision_bisect.runs.saved_options import (
    options_from_json,
    options_of_result,
    options_to_json,
    told_options,
)
from precision_bisect.settings.engine_settings import SHAPES, EngineSettings
from precision_bisect.settings.export_points import EXPORT_POINTS
from precision_bisect.settings.flags import kinds

NAMES = st.text(min_size=1, max_size=8)
PATHS = NAMES.map(Path)
FIGURES = st.floats(1e-9, 1e9)
SIZES = st.lists(st.integers(1, 2**20), max_size=4).map(tuple)
TEXTS = st.lists(NAMES, max_size=3).map(tuple)
SCRIPT = Path(__file__)
BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "model": PATHS,
    "inputs": st.none() | PATHS,
    "metric": NAMES,
    "check": st.sampled_from([None, "top1", "boxes:dets,labels", "dir/judge.py:worst"]),
    "strategy": NAMES,
    "start": st.none() | NAMES,
    "image_size": st.none() | st.tuples(st.integers(1, 99), st.integers(1, 99)),
    "mean": st.lists(FIGURES, min_size=3, max_size=3).map(tuple),
    "std": st.lists(FIGURES, min_size=1, max_size=1).map(tuple),
    "ladder": st.sampled_from([(), ("int8", "fp16", "fp32")]),
    "ranges": st.dictionaries(NAMES, st.just((-1.5, 999.0)), max_size=2),
    "input_shapes": st.dictionaries(NAMES, SIZES, max_size=2),
    "executor_address": st.none() | NAMES,
    "export_point": st.sampled_from([*EXPORT_POINTS, "17"]),
    "quantile": st.floats(0.01, 1.0),
    "risk": st.none() | st.floats(0.01, 0.5),
    "ort_options": st.sampled_from([{}, {"use_tf32": "0"}]),
    "compute_capability": st.sampled_from([None, "8.6"]),
    "config_script": st.sampled_from([None, f"{SCRIPT}:change"]),
    "optimization_level": st.none() | st.integers(0, 5),
    "workspace_mib": st.none() | st.integers(1, 2**40),
    "max_time_s": st.none() | FIGURES | st.just(math.inf),
    **dict.fromkeys(("min_shapes", "opt_shapes", "max_shapes"), st.just({"x": (1, 2)})),
    **dict.fromkeys(("plugins", "ort_custom_ops"), st.just(())),
    **dict.fromkeys(
        ("tol", "atol", "rtol"), FIGURES | st.dictionaries(NAMES, FIGURES, max_size=2)
    ),
    **dict.fromkeys(("copies_failing", "holdout", "seed", "copies"), st.integers(0, 99)),
    **dict.fromkeys(("keep", "low_only", "gpus"), TEXTS),
}
"""Values of the fields whose types do not say what they may be."""
BY_KIND: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(1, 99),
    float: FIGURES,
    str: NAMES,
    Path: PATHS,
}


def values_of(setting: Any) -> st.SearchStrategy[Any]:
    """Return values of a field, by its type where its name has none."""
    kind = next(iter(kinds(setting)))
    if setting.name in BY_NAME:
        return BY_NAME[setting.name]
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    return BY_KIND.get(kind, st.dictionaries(NAMES, NAMES, max_size=2))


def through_json(content: object) -> Any:
    """Return what is read back of what is written."""
    return plain_json.parse(json.dumps(content))


def assert_comes_back(**values: Any) -> None:
    """Check that options are the same in a header; what cannot be by itself is left out."""
    try:
        options = Options(**{"model": Path("m.onnx"), **values})
    except UsageError:
        return
    assert options == options_from_json(through_json(options_to_json(options)))


@pytest.mark.parametrize(
    "setting", [it for it in fields(Options) if it.name != "engine"], ids=lambda it: it.name
)
@settings(max_examples=20)
@given(data=st.data())
def test_every_option_comes_back(setting: Any, data: st.DataObject) -> None:
    """Each field that is there, also one that is new, goes into a header and out of it."""
    assert_comes_back(**{setting.name: data.draw(values_of(setting))})


@pytest.mark.parametrize("setting", fields(EngineSettings), ids=lambda it: it.name)
@settings(max_examples=20)
@given(data=st.data())
def test_every_setting_of_engines_comes_back(setting: Any, data: st.DataObject) -> None:
    """The same of what is inside."""
    values = {setting.name: data.draw(values_of(setting))}
    if setting.name in SHAPES:
        values["opt_shapes"] = values[setting.name]
    assert_comes_back(engine=EngineSettings(**values))


def test_options_come_back_together() -> None:
    """Of several fields none takes the place of another."""
    assert_comes_back(
        ladder=("int8", "fp16", "fp32"),
        calibration="entropy",
        keep=("a", "b.*"),
        inputs=Path("samples"),
        image_size=(640, 480),
        mean=(0.5, 0.25, 0.125),
        tol={"": 0.01, "y": 0.5},
        workers=2,
        gpus=("0", "1"),
        max_time_s=math.inf,
        engine=EngineSettings(opt_shapes={"x": (1, 2)}, max_shapes={"x": (4, 2)}),
    )
    assert_comes_back(strategy="pareto", optuna_storage="sqlite:///a.db", backend="tensorrt")


def test_a_result_tells_no_machine_and_no_path() -> None:
    """It may lie in a repository; of files that hold code the names are told."""
    engine = EngineSettings(
        config_script=f"{SCRIPT}:change", backend_options={"host": "me@board"}, workspace_mib=64
    )
    options = Options(
        model=Path("/home/me/m.onnx"),
        inputs=Path("/home/me/inputs"),
        start="/home/me/run",
        check="/home/me/judge.py:worst",
        executor="dask",
        executor_address="tcp://box:8786",
        strategy="pareto",
        optuna_storage="postgresql://me:secret@box/db",
        engine=engine,
        tol=0.5,
    )
    told = through_json(told_options(options))
    text = json.dumps(told)
    for secret in ("/home", "me@board", "tcp", "secret", str(SCRIPT.parent)):
        assert secret not in text
    assert (told["check"], told["engine"]["config_script"]) == (
        "judge.py:worst",
        f"{SCRIPT.name}:change",
    )
    again = options_of_result(told, Path("other.onnx"))
    assert (0.5, 64, None) == (again.tol, again.engine.workspace_mib, again.engine.config_script)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "expected `object`, got `array`"),
        ({}, "it names no model"),
        ({"model": 3}, "model: expected `str`, got `int`"),
        ({"model": "m", "colour": 1}, "there is no option 'colour'"),
        ({"model": "m", "low": "fp4"}, "low: invalid enum value 'fp4'"),
        ({"model": "m", "seed": "0"}, "seed: expected `int`, got `str`"),
        ({"model": "m", "seed": True}, "seed: expected `int`, got `bool`"),
        ({"model": "m", "engine": None}, "expected `object`, got `null`"),
        ({"model": "m", "engine": {"tf32": 1}}, "engine: tf32: expected `str`"),
        ({"model": "m", "mean": {"a": 1}}, "mean: expected `array`"),
    ],
)
def test_what_no_run_writes_is_refused(content: object, said: str) -> None:
    """The place is named."""
    with pytest.raises(ValueError, match=re.escape(said)):
        options_from_json(content)


def test_objects_of_python_leave_their_names() -> None:
    """Samples in memory leave nothing, and what was given as an object is called by its name."""
    options = Options(model=Path("m.onnx"), inputs=[{}], check=through_json, strategy=values_of)
    again = options_from_json(through_json(options_to_json(options)))
    named: dict[str, Any] = {
        "check": f"{__name__}.through_json",
        "strategy": f"{__name__}.values_of",
    }
    assert again == replace(options, inputs=None, **named)
