"""Answers as whole modules: those around a plan, and the search that decides on modules."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from models import load_text
from oracles import Simulation
from precision_bisect.layer_table import Exclusion, LayerTable, modules_around
from precision_bisect.pipeline.stability import StabilityCheck
from precision_bisect.pipeline.whole_modules import Modules, by_modules, searched_by_module
from precision_bisect.plan import Plan
from precision_bisect.plugins import STRATEGIES, installed, load_strategy
from precision_bisect.precisions import Form, Pair
from precision_bisect.protocols import Problem
from precision_bisect.trial import Outcome

NAMES = ("", "a", "a.x", "a.x.y", "b", "b.0", "b.1", "c.0.d")
PAIR = Pair(low="fp16", high="fp32")
named = st.lists(st.sampled_from(NAMES), min_size=1, max_size=24)


@given(named, st.data())
def test_modules_around_a_plan_hold_it(of: list[str], data: st.DataObject) -> None:
    """They hold all of its layers, lie apart, and each has a layer of the plan for its own."""
    modules = Modules(of=of)
    plan = Plan.of(data.draw(st.sets(st.integers(0, len(of) - 1))))
    names = modules.around(plan)
    own = {of[layer] for layer in plan.kept}
    assert bool(names) == ("" not in own and bool(own))
    assert {*names} <= own
    assert all(each not in modules_around(other)[:-1] for each in names for other in names)
    closed = modules.closed(plan)
    assert plan.kept <= closed.kept
    assert closed == modules.closed(closed)


def test_what_is_high_in_every_plan_is_held_too() -> None:
    """PyTorch has to keep what was asked for, and what cannot run low; it is never dropped."""
    modules = Modules(of=["a", "a.x", "b", "c"], high=["a.x", "c"])
    assert ["b", "a.x", "c"] == modules.around(Plan.of([2]))
    assert [] == replace(modules, high=["a", ""]).around(Plan.of([2]))
    found = told(modules, Plan.of([2]), needed=[2])
    assert found is not None and (["b", "a.x", "c"], 3) == found


@pytest.mark.parametrize(
    ("exclusion", "form", "held"),
    [
        (Exclusion.ASKED, PAIR.high_form, ["a"]),
        (Exclusion.ASKED, PAIR.low_form, []),
        (Exclusion.CONTROL_FLOW, None, ["a"]),
        (Exclusion.FOLLOWER, None, []),
    ],
)
def test_modules_of_a_table_hold_what_is_high(
    tmp_path: Path, exclusion: Exclusion, form: Form | None, held: list[str]
) -> None:
    """By request or by its kind; what moves values, and what was asked to run low, is not."""
    text = "(float[2] x) => (float[2] y) { m = Exp(x) y = Tanh(m) }"
    first, last = load_text(text, tmp_path).table.layers
    first = replace(first, module="a", exclusion=exclusion, fixed=form)
    modules = Modules.in_table(LayerTable((first, replace(last, module="b"))), PAIR)
    assert ((*modules.of,), [*modules.high]) == (("b",), held)


def test_modules_that_can_go_are_dropped() -> None:
    """What the rest of one module brings can make another needless."""
    modules = Modules(of=["a", "a", "b", "c"])
    # Either both layers of a, or the first of them and b.
    simulation = Simulation(4, lambda kept: error(({0, 1} <= kept) or ({0, 2} <= kept)))
    check = StabilityCheck(problem=problem(modules), copies=False)
    found = simulation.run(by_modules(Plan.of([0, 2]), modules, check))
    assert found is not None
    assert (["a"], 2, True) == (found.names, found.layers, found.minimal)


def test_modules_that_can_all_go_stay() -> None:
    """A plan was widened for copies, or a risk: the samples alone need nothing."""
    modules = Modules(of=["a", "b"])
    simulation = Simulation(2, lambda kept: error(True))
    check = StabilityCheck(problem=problem(modules), copies=False)
    found = simulation.run(by_modules(Plan.of([0]), modules, check))
    assert found is not None and (["a"], 1, False) == (found.names, found.layers, found.minimal)


def test_modules_that_fail_are_not_told() -> None:
    """More kept layers may break it: then no modules are said to hold."""
    modules = Modules(of=["a", "a", "b"])
    simulation = Simulation(3, lambda kept: error(0 in kept and 1 not in kept))
    check = StabilityCheck(problem=problem(modules), copies=False)
    assert simulation.run(by_modules(Plan.of([0]), modules, check)) is None


@pytest.mark.parametrize("name", sorted({*installed(STRATEGIES)} - {"pareto"}))
def test_every_strategy_searches_modules(name: str) -> None:
    """The answer is whole modules, and holds; minimal strategies leave none that can go."""
    of = [f"blocks.{i // 6}.{'norm' if i % 3 else 'attn'}" for i in range(36)]
    modules = Modules(of=of)
    needed = frozenset((8, 9, 20))
    simulation = Simulation(36, lambda kept: error(needed <= kept))
    strategy = load_strategy(name)
    plan = simulation.run(searched_by_module(problem(modules), strategy, modules))
    assert modules.whole(modules.around(plan)) == plan
    assert needed <= plan.kept
    if strategy.minimal:
        assert {of[layer] for layer in needed} == {of[layer] for layer in plan.kept}


def test_a_layer_of_the_model_itself_is_kept_alone() -> None:
    """No module but the model holds it, so the answer has it as it is."""
    modules = Modules(of=["", "a", "a", ""])
    simulation = Simulation(4, lambda kept: error({0, 1} <= kept))
    guided = load_strategy("guided")
    plan = simulation.run(searched_by_module(problem(modules), guided, modules))
    assert Plan.of([0, 1, 2]) == plan


def error(passes: bool) -> Outcome:
    """Return the outcome of a plan that passes, or fails by far."""
    return oracles.outcome(0.1 * oracles.TOLERANCE if passes else 10 * oracles.TOLERANCE)


def problem(modules: Modules) -> Problem:
    """Return the problem of the modules' layers."""
    return replace(oracles.problem(len(modules.of)), modules=modules.of)


def told(modules: Modules, answer: Plan, needed: Sequence[int]) -> tuple[list[str], int] | None:
    """Return the modules that are told of an answer, and the number of their layers."""
    wanted = frozenset(needed)
    simulation = Simulation(len(modules.of), lambda kept: error(wanted <= kept))
    check = StabilityCheck(problem=problem(modules), copies=False)
    found = simulation.run(by_modules(answer, modules, check))
    return None if found is None else (list(found.names), found.layers)
