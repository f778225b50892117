"""The `--layerPrecisions` string selects exactly the kept layers, or there is none."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_bisect.exports.layer_precisions import (
    LONGEST_ARGUMENT,
    NotWritable,
    write_layer_precisions,
)

AWKWARD = [
    "conv1",
    "/block.0/attn/MatMul",
    "a,b",
    "a,c",
    "a,b,c",
    "it's",
    "'quoted'",
    '"double"',
    "a:0",
    "a:0:fp16",
    ":",
    "*",
    "a*b",
    "a*",
    "a b",
    " a",
    "<script>alert(1)</script>",
    "卷积层",
    "卷积,层",
    "x=1",
    "=",
    "a+b",
    "\\",
]


class TrtexecError(Exception):
    """What trtexec ends with."""


def trtexec_parse(argument: str) -> dict[str, str]:
    """Parse one command-line argument as sampleOptions.cpp of TensorRT 10 does."""
    flag, _, value = argument.partition("=")
    assert flag == "--layerPrecisions"
    found = {}
    for item in value.split(","):
        if "'" in item:
            if item.count("'") != 2:
                raise TrtexecError(item)
            first, second = item.index("'"), item.rindex("'")
            name, rest = item[:first] + item[first + 1 : second], item[second + 2 :]
        else:
            colon = item.rfind(":")
            if colon < 0:
                raise TrtexecError(item)
            name, rest = item[:colon], item[colon + 1 :]
        if rest not in ("fp32", "fp16", "bf16", "int8", "int32"):
            raise TrtexecError(rest)
        found[name] = rest
    return found


def wildcard(pattern: str, name: str) -> bool:
    """Match as matchStringWithOneWildcard does: only the first star is one."""
    star = pattern.find("*")
    if star < 0:
        return pattern == name
    head, tail = pattern[:star], pattern[star + 1 :]
    return len(name) + 1 >= len(pattern) and name[:star] == head and name.endswith(tail)


def trtexec_selects(argument: str, names: list[str]) -> set[str]:
    """Return the names whose precision trtexec sets: by exact key, else by any pattern."""
    keys = trtexec_parse(argument)
    return {name for name in names if name in keys or any(wildcard(k, name) for k in keys)}


NAMES = st.lists(
    st.one_of(
        st.sampled_from(AWKWARD),
        st.text(alphabet="ab,'\"*: =<层", min_size=0, max_size=6),
        st.text(min_size=0, max_size=4),
    ),
    min_size=1,
    max_size=8,
    unique=True,
)


@given(names=NAMES, data=st.data())
@settings(deadline=None, max_examples=400)
def test_the_string_selects_exactly_the_kept_layers(names: list[str], data: st.DataObject) -> None:
    """Whatever the names, a string that is given out selects the plan by trtexec's own rules."""
    kept = data.draw(st.lists(st.sampled_from(names), unique=True))
    others = [name for name in names if name not in kept]
    try:
        spec = write_layer_precisions(kept, others)
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
            write_layer_precisions(kept, others)
    else:
        assert expected == write_layer_precisions(kept, others)


def test_the_type_is_the_one_asked_for() -> None:
    """Another high precision is written in place of fp32."""
    assert write_layer_precisions(["a"], [], "bf16") == "a:bf16"


def test_the_longest_argument_of_linux_is_the_limit() -> None:
    """A string that fills one argument to the last byte is given out, one byte more is not."""
    room = LONGEST_ARGUMENT - len("--layerPrecisions=" + ":fp32")
    assert len(write_layer_precisions(["n" * room], [])) == room + len(":fp32")
    with pytest.raises(NotWritable, match="128 KiB"):
        write_layer_precisions(["n" * (room + 1)], [])


def test_bytes_count_not_characters() -> None:
    """Names outside ASCII count by their encoded length."""
    with pytest.raises(NotWritable, match="128 KiB"):
        write_layer_precisions(["层" * (LONGEST_ARGUMENT // 3)], [])
