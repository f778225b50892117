"""The `--layerPrecisions` string for trtexec (TensorRT 8.6 to 10.x).

trtexec splits the string at commas before it looks at quotes, so some names cannot be written as
they are; those become a pattern with one `*`. Patterns may collide and trtexec's order among them
is unspecified, so every string is parsed again here by trtexec's rules, applied to all names of
the model, and given out only if it selects exactly the plan. Patterns need TensorRT 10; to 8.6
they are plain names that match nothing.

Grammar: NVIDIA/TensorRT, samples/common/sampleOptions.cpp and sampleUtils.h (10.16). The string
has no effect without `--precisionConstraints=obey`.
"""

from collections.abc import Iterable, Mapping

LONGEST_ARGUMENT = 128 * 1024 - 1
"""Linux' limit on a single argument, in bytes."""
_FLAG = "--layerPrecisions="
UNWRITABLE = frozenset(",'")
"""Characters that no exact name may have."""


class NotWritable(Exception):
    """An export cannot say exactly this plan; the message says why, in one sentence."""


def write_layer_precisions(wanted: Mapping[str, str], others: Iterable[str]) -> str:
    """Return the string that gives exactly these layers the precision that `wanted` has for each.

    `others` are all further names that trtexec could match: layers and initializers. Raises
    NotWritable when there is no such string.
    """
    if not wanted:
        raise NotWritable("no layer is kept")
    universe = [*wanted, *others]
    spec = ",".join(f"{_written(name)}:{precision}" for name, precision in wanted.items())
    if len(_FLAG.encode()) + len(spec.encode()) > LONGEST_ARGUMENT:
        raise NotWritable("the string is longer than Linux allows for one argument (128 KiB)")
    selected = select(parse_layer_precisions(spec), universe)
    wrong = [name for name in selected if name not in wanted]
    missed = [name for name, precision in wanted.items() if selected.get(name) != precision]
    if wrong:
        raise NotWritable(f"the string would also select {wrong[0]!r}")
    if missed:
        raise NotWritable(f"no trtexec string selects {missed[0]!r}")
    return spec


def _written(name: str) -> str:
    """Return the name, or a pattern for it where trtexec could not read the name."""
    if not name or not name.isprintable():
        raise NotWritable(f"the name {name!r} is empty or has control characters")
    places = [i for i, character in enumerate(name) if character in UNWRITABLE]
    if not places:
        return name
    stars = [i for i, character in enumerate(name) if character == "*"]
    first, last = min(places + stars), max(places + stars)
    return f"{name[:first]}*{name[last + 1 :]}"


def parse_layer_precisions(spec: str) -> Mapping[str, str]:
    """Parse a string as trtexec 10.x does. Raises NotWritable where trtexec would refuse it."""
    precisions = {}
    for item in spec.split(","):
        quotes = item.count("'")
        if quotes not in (0, 2):
            raise NotWritable(f"trtexec expects no or two quotes in {item!r}")
        if quotes:
            before, inside, after = item.split("'")
            name, precision = before + inside, after[1:]
        else:
            name, colon, precision = item.rpartition(":")
            if not colon:
                raise NotWritable(f"trtexec finds no type in {item!r}")
        precisions[name] = precision
    return precisions


def select(precisions: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the precision that trtexec gives to each name that the string selects.

    An exact key wins; among patterns that match, trtexec's choice is unspecified, so two that
    disagree select "?".
    """
    patterns = {key: value for key, value in precisions.items() if "*" in key}
    selected = {}
    for name in names:
        if name in precisions:
            selected[name] = precisions[name]
            continue
        found = {value for key, value in patterns.items() if _matches(key, name)}
        if found:
            selected[name] = found.pop() if len(found) == 1 else "?"
    return selected


def _matches(pattern: str, name: str) -> bool:
    """Match `prefix*suffix`; a further `*` is a literal character."""
    prefix, _, suffix = pattern.partition("*")
    return (
        len(name) >= len(prefix) + len(suffix)
        and name.startswith(prefix)
        and name.endswith(suffix)
    )
