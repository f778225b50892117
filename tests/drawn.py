"""Hypothesis draws problems for strategies: sizes, culprits, oracles of every kind."""

from hypothesis import strategies as st

import oracles
from oracles import Oracle
from precision_bisect.protocols import Problem
from precision_bisect.testing.cases import Case

SMALL = 6
"""So many layers at most where all strategies are driven, exponential ones too."""


@st.composite
def culprits(draw: st.DrawFn, most: int = 40) -> tuple[int, frozenset[int]]:
    """Draw a number of layers and a set of culprits among them."""
    size = draw(st.integers(1, most))
    found = draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=8))
    return size, frozenset(found)


@st.composite
def monotone_oracle(draw: st.DrawFn, most: int = 9) -> tuple[int, Oracle]:
    """Draw a number of layers and an oracle that more kept layers never turn against."""
    size = draw(st.integers(2, most))
    layer = st.integers(0, size - 1)
    some = st.sets(layer, min_size=1)
    pairs = st.lists(st.tuples(layer, layer), min_size=1, max_size=3)
    errors = st.lists(st.floats(0.0, 1.0), min_size=size, max_size=size).filter(
        lambda found: sum(found) > oracles.TOLERANCE
    )
    plain = st.one_of(
        some.map(oracles.monotone),
        st.lists(some, min_size=1, max_size=3).map(oracles.clustered),
        pairs.map(oracles.interacting),
        errors.map(oracles.additive),
    )
    return size, draw(plain)


@st.composite
def any_oracle(draw: st.DrawFn, most: int = 9) -> tuple[int, Oracle]:
    """Draw a number of layers and one of every kind of oracle."""
    size, chosen = draw(monotone_oracle(most))
    seed = st.integers(0, 1000)
    if draw(st.booleans()):
        chosen = oracles.non_monotone(size, draw(seed))
    if draw(st.booleans()):
        chosen = oracles.flaky(chosen, size, draw(seed))
    return size, oracles.without_figures(chosen) if draw(st.booleans()) else chosen


@st.composite
def any_case(draw: st.DrawFn) -> Case:
    """Draw what a promise is checked on: names with and without scopes, every monotone oracle."""
    size, oracle = draw(monotone_oracle(SMALL))
    scope = st.sampled_from(["", "/a/", "/a/b/", "/c/"])
    scopes = draw(st.lists(scope, min_size=size, max_size=size))
    seed = draw(st.integers(0, 1000))
    return Case(
        name="drawn",
        seed=seed,
        problem=Problem(
            names=[f"{scope}op{i}" for i, scope in enumerate(scopes)],
            tolerance=oracles.TOLERANCE,
            seed=seed,
        ),
        oracle=oracle,
        emulator=oracle,
    )
