"""The `--layerPrecisions` string selects exactly the kept layers, or there is none."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from exports_models import chain, export_of
from models import save
from precision_bisect.exports.export import NotWritable
from precision_bisect.exports.trtexec_names import (
    LONGEST_ARGUMENT,
    layer_precisions,
    trtexec_nodes,
    write_layer_precisions,
)
from precision_bisect.layer_table import LayerName
from trtexec_oracle import NAMES, trtexec_parse, trtexec_selects


@given(names=NAMES, data=st.data())
@examples(50)
def test_the_string_selects_exactly_the_kept_layers(names: list[str], data: st.DataObject) -> None:
    """Whatever the names, a string that is given out selects the plan by trtexec's own rules."""
    kept = data.draw(st.lists(st.sampled_from(names), unique=True))
    others = [name for name in names if name not in kept]
    try:
        spec = write_layer_precisions(dict.fromkeys(kept, "fp32"), others)
    except NotWritable as reason:
        assert str(reason)
        return
    argument = f"--layerPrecisions={spec}"
    assert trtexec_selects(argument, names) == set(kept)
    assert set(trtexec_parse(argument).values()) == {"fp32"}


@pytest.mark.parametrize(
    ("kept", "others", "expected"),
    [
        (["a", "b"], ["c"], "a:fp32,b:fp32"),
        (["a:0"], ["a"], "a:0:fp32"),
        (["a,b"], ["c"], "a*b:fp32"),
        (["a,b,c"], ["a"], "a*c:fp32"),
        (["it's"], ["bits"], "it*s:fp32"),
        (["it's"], ["its"], None),
        (["x*y"], ["xy"], None),
        (["x*y"], ["z"], "x*y:fp32"),
        (["a,b"], ["a/b"], None),
        (["a,b", "a/b"], ["c"], "a*b:fp32,a/b:fp32"),
        ([","], ["c"], None),
        ([","], [], "*:fp32"),
        ([""], ["c"], None),
        (["line\nbreak"], ["c"], None),
        (["卷积"], ["卷"], "卷积:fp32"),
        (["x=1"], ["x"], "x=1:fp32"),
        ([" a "], ["a"], " a :fp32"),
        ([], ["a"], None),
    ],
)
def test_known_cases(kept: list[str], others: list[str], expected: str | None) -> None:
    """Commas and quotes become a star where that hits nothing else; else there is no string."""
    if expected is None:
        with pytest.raises(NotWritable):
            write_layer_precisions(dict.fromkeys(kept, "fp32"), others)
    else:
        assert expected == write_layer_precisions(dict.fromkeys(kept, "fp32"), others)


def test_the_type_is_the_one_asked_for() -> None:
    """Another high precision is written in place of fp32."""
    assert write_layer_precisions({"a": "bf16", "b": "fp32"}, []) == "a:bf16,b:fp32"


def test_the_longest_argument_of_linux_is_the_limit() -> None:
    """A string that fills one argument to the last byte is given out, one byte more is not."""
    room = LONGEST_ARGUMENT - len("--layerPrecisions=" + ":fp32")
    assert len(write_layer_precisions({"n" * room: "fp32"}, [])) == room + len(":fp32")
    with pytest.raises(NotWritable, match="128 KiB"):
        write_layer_precisions({"n" * (room + 1): "fp32"}, [])


def test_bytes_count_not_characters() -> None:
    """Names outside ASCII count by their encoded length."""
    with pytest.raises(NotWritable, match="128 KiB"):
        write_layer_precisions({"层" * (LONGEST_ARGUMENT // 3): "fp32"}, [])


def test_what_exporters_share_is_of_one_plan(tmp_path: Path) -> None:
    """It is computed once for an export; what outlived a change would export another plan."""
    export = export_of(save(chain(["a", "b", "c"]), tmp_path), ["a"])
    other = replace(export, kept=[LayerName("b")])
    for _ in range(2):
        assert ["a:fp32", "b:fp32"] == [layer_precisions(each) for each in (export, other)]
        assert ["a"] == [*export.high] and ["b"] == [*other.high]
    assert trtexec_nodes(export) is trtexec_nodes(export)
