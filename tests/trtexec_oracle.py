"""trtexec's rules for names, written down a second time, and names that are hard on them."""

from collections.abc import Mapping, Sequence

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


def trtexec_selects(
    argument: str,
    names: Sequence[str],
    wanted: str = "--layerPrecisions",
    *,
    patterns: bool = True,
) -> set[str]:
    """Return the names whose precision trtexec sets: by exact key, else by any pattern.

    Without `patterns`, as in 8.4 to 8.6, a star is a character, but for a key that is one star:
    that is every layer (setLayerPrecisions and setLayerOutputTypes of sampleEngines.cpp, v8.6.1).
    """
    keys = trtexec_parse(argument, wanted)
    if not patterns:
        return set(names) if "*" in keys else keys.keys() & set(names)
    return {name for name in names if name in keys or any(wildcard(k, name) for k in keys)}


SELECTORS = ("--minShapes", "--optShapes", "--maxShapes")


def trtexec_profile(
    arguments: Sequence[str], inputs: Mapping[str, Sequence[int | str | None]]
) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the least, best and most shapes that trtexec builds each dynamic input for.

    As getShapesBuild and processShapes of sampleOptions.cpp and setupNetworkAndConfig of
    sampleEngines.cpp (TensorRT 10) do; `inputs` has the shapes of the model.
    """
    flags = [argument.partition("=")[0] for argument in arguments]
    doubled = [name for name in flags if flags.count(name) > 1]
    if doubled:
        raise TrtexecError(f"Unknown option: {doubled[0]}")
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for argument in arguments:
        selector, _, spec = argument.partition("=")
        for item in spec.split(",") if selector in SELECTORS else ():
            name, value = _name_and_value(item)
            shape = () if value == "scalar" else tuple(map(int, value.split("x")))
            found.setdefault(name, {})[selector] = shape
    least, best, most = (selector in flags for selector in SELECTORS)
    # A selector is taken from another one only where its flag is missing as a whole.
    sources = (
        "--minShapes" if least else "--optShapes" if best else "--maxShapes",
        "--optShapes" if best else "--maxShapes" if most else "--minShapes",
        "--maxShapes" if most else "--optShapes" if best else "--minShapes",
    )
    filled = {name: tuple(each.get(s, ()) for s in sources) for name, each in found.items()}
    dynamic = {
        name: dims for name, dims in inputs.items() if not all(isinstance(d, int) for d in dims)
    }
    if filled and not dynamic:
        raise TrtexecError("Static model does not take explicit shapes")
    profile = {}
    for name, dims in dynamic.items():
        ones = tuple(size if isinstance(size, int) else 1 for size in dims)
        profile[name] = filled.get(name, (ones,) * 3)
        if any(len(sizes) != len(dims) for sizes in profile[name]):
            raise TrtexecError(f"dimensions of {name} do not match the network's")
    return profile


def _name_and_value(item: str) -> tuple[str, str]:
    """Part an item as splitNameAndValue does: by quotes, else at the last colon."""
    parts = item.split("'")
    if len(parts) == 1:
        name, _, value = item.rpartition(":")
        return name, value
    if len(parts) != 3:
        raise TrtexecError(item)
    return parts[0] + parts[1], parts[2][1:]


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
