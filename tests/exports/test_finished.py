"""A result.json is untrusted: it is a finished run of this model, or an error in one line."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exports_models import chain
from models import loaded
from precision_bisect.errors import PrecisionBisectError
from precision_bisect.exports.finished import Finished, read_finished
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.precisions import Form, Pair
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Pinned
from precision_bisect.runs.runfolder import RESULT
from run_folders import result_of
from tiny import KEPT

NAMES = ["a", "b", "c"]


@cache
def model() -> Model:
    """Return a small model, made once."""
    return loaded(chain(NAMES))


def valid() -> dict[str, Any]:
    """Return the fields of a result, without the rungs."""
    fields = result_of(
        NAMES,
        [2, 0],
        rungs=(),
        pinned=[Pinned(layer="b", reason="because")],
        fingerprint={"model": model().digest},
    )
    return fields.to_json()


def reading(path: Path, fields: Any) -> Finished:
    """Read these fields back from a file."""
    path.write_text(json.dumps(fields))
    return read_finished(path, model())


def test_a_finished_run_is_read(searched: Path) -> None:
    """What the search wrote is read from the file as from its folder."""
    tiny = load_model(searched / "tiny.onnx")
    from_file = read_finished(searched / "run" / RESULT, tiny)
    assert from_file == read_finished(searched / "run", tiny)
    assert (tuple(KEPT), "fp16", "fp32") == (
        from_file.kept,
        from_file.pair.low,
        from_file.pair.high,
    )
    assert (Status.FOUND, searched / "run" / RESULT) == (from_file.result.status, from_file.path)


def test_kept_layers_come_in_network_order(tmp_path: Path) -> None:
    """Whatever the order in the file, and with the pinned layers beside them."""
    found = reading(tmp_path / "r.json", valid())
    assert (("a", "c"), {"b": "because"}) == (found.kept, found.pinned)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": 2}, "no result.json of version 1: its schema is 2"),
        ({"schema": None}, "its schema is None"),
        ({"status": "lost"}, "invalid enum value 'lost' - at `$.status`"),
        ({"status": []}, "got `array` - at `$.status`"),
        ({"status": "infeasible"}, "has no answer: its status is 'infeasible'"),
        ({"status": "not_precision"}, "has no answer"),
        ({"status": "interrupted", "kept": []}, "has no answer"),
        ({"kept": []}, "has no answer"),
        ({"kept": "a"}, "expected `array`, got `str` - at `$.kept`"),
        ({"kept": [1]}, "expected `str`, got `int` - at `$.kept[0]`"),
        ({"kept": ["a", "a"]}, "names the layer 'a', twice"),
        ({"kept": ["x"]}, "names the layer 'x', which is no candidate of the model"),
        ({"kept": ["b"]}, "names the layer 'b', twice"),
        ({"pinned": ["b"]}, "expected `object`, got `str` - at `$.pinned[0]`"),
        ({"pinned": [{"layer": "b"}]}, "missing required field `reason`"),
        ({"low": "fp4"}, "invalid enum value 'fp4' - at `$.low`"),
        ({"high": ["fp32"]}, "got `array` - at `$.high`"),
        ({"fingerprint": None}, "got `null` - at `$.fingerprint`"),
        ({"fingerprint": {"model": "00"}}, "belongs to another model than"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    """Each field that is not what a run writes is named, in one line with a hint."""
    with pytest.raises(PrecisionBisectError) as error:
        reading(tmp_path / "r.json", {**valid(), **change})
    assert says in error.value.one_line()
    assert error.value.hint


RUNGS = [
    {"precision": "fp32", "layers": ["a"], "count": 1},
    {"precision": "fp16", "layers": ["c"], "count": 2},
    {"precision": "int8", "layers": None, "count": 0},
]


def test_a_ladder_is_the_pair_of_its_lowest_rungs(tmp_path: Path) -> None:
    """What the last search kept is kept, layers of higher rungs are fixed to their type."""
    fields = {**valid(), "low": "int8", "rungs": RUNGS}
    found = reading(tmp_path / "r.json", fields)
    assert Pair(low="int8", high="fp16") == found.pair
    assert (("c",), {"a": "fp32"}, {"b": "because"}) == (found.kept, found.fixed, found.pinned)
    fixed = {layer.name: layer.fixed for layer in found.with_pinned(model()).table.layers}
    assert {"a": Form(stored="fp32"), "b": None, "c": None} == fixed


def test_a_pair_lists_its_rungs_too(tmp_path: Path) -> None:
    """With one rung above the lowest nothing is fixed, and `kept` counts."""
    rungs = [
        {"precision": "fp32", "layers": ["c", "a"], "count": 2},
        {"precision": "fp16", "layers": None, "count": 1},
    ]
    found = reading(tmp_path / "r.json", {**valid(), "rungs": rungs})
    alone = reading(tmp_path / "r.json", valid())
    assert replace(alone, result=found.result) == found
    assert {} == found.fixed


@pytest.mark.parametrize(
    ("rungs", "says"),
    [
        ("fp32", "got `str` - at `$.rungs`"),
        (["fp32"], "got `str` - at `$.rungs[0]`"),
        ([{"precision": "fp16", "layers": [], "count": 0}], "its rungs list no layers"),
        ([{"precision": "fp64", "layers": [], "count": 0}], "invalid enum value 'fp64'"),
        ([{"precision": "fp32", "layers": None, "count": 0}], "its rungs list no layers"),
        ([{"precision": "fp32", "layers": ["x"], "count": 1}], "names the layer 'x'"),
    ],
)
def test_damaged_rungs_are_named(rungs: Any, says: str, tmp_path: Path) -> None:
    """What is no list of types and layers of the model is an error in one line."""
    with pytest.raises(PrecisionBisectError) as error:
        reading(tmp_path / "r.json", {**valid(), "rungs": rungs})
    assert says in error.value.one_line()


def test_a_quantized_run_needs_its_scales(tmp_path: Path) -> None:
    """Without scales.json nothing can be written again, which is said in one line."""
    fields = {**valid(), "low": "int8", "rungs": RUNGS}
    with pytest.raises(PrecisionBisectError, match=r"cannot read .*scales\.json"):
        reading(tmp_path / "r.json", fields).scales()
    assert {} == reading(tmp_path / "r.json", valid()).scales().activations


@pytest.mark.parametrize("status", ["budget_exhausted", "interrupted"])
def test_the_best_so_far_counts(status: str, tmp_path: Path) -> None:
    """A run that was cut off has an answer once a plan has passed."""
    assert ("a", "c") == reading(tmp_path / "r.json", {**valid(), "status": status}).kept


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "is not JSON"), (b"\xff", "is not JSON"), (b"[" * 100_000, "is not JSON")],
)
def test_other_files_are_refused(content: bytes, says: str, tmp_path: Path) -> None:
    """A file that is no JSON is named."""
    (tmp_path / RESULT).write_bytes(content)
    with pytest.raises(PrecisionBisectError, match=says):
        read_finished(tmp_path, model())


@pytest.mark.parametrize("path", ["missing", "missing/result.json", "nul\0"])
def test_a_missing_run_is_named(path: str, tmp_path: Path) -> None:
    """Without a file there the error says what to give."""
    with pytest.raises(PrecisionBisectError) as error:
        read_finished(tmp_path / path, model())
    assert "--plan" in error.value.one_line()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(NAMES),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(
    JSON | st.dictionaries(st.sampled_from([*valid(), "rungs"]), JSON).map(lambda c: valid() | c)
)
def test_any_json_is_a_finished_run_or_an_error(fields: Any) -> None:
    """Nothing that a file may hold ends in another exception."""
    try:
        with TemporaryDirectory() as folder:
            found = reading(Path(folder, RESULT), fields)
    except PrecisionBisectError as error:
        assert "\n" not in error.one_line()
    else:
        assert set(NAMES).issuperset({*found.kept, *found.pinned})
