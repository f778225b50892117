"""trtexec's rules for names, written down a second time, and names that are hard on them."""

from collections.abc import Sequence

from hypothesis import strategies as st

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


def trtexec_parse(argument: str, wanted: str = "--layerPrecisions") -> dict[str, str]:
    """Parse one command-line argument as sampleOptions.cpp of TensorRT 10 does."""
    flag, _, value = argument.partition("=")
    assert flag == wanted
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


def trtexec_selects(argument: str, names: Sequence[str]) -> set[str]:
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
