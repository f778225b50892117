"""The aims are missed where they are missed, and peers are compared where they are comparable."""

import pytest
from search_aims import Aim, aims, information
from search_rows import Row
from search_run import Figures


def row(
    algorithm: str,
    calls: float,
    *,
    ratio: float = 1.0,
    answer: float = 1.0,
    true: float = 1.0,
    again: float = 1.0,
    structure: str = "B",
) -> Row:
    """Return a row of n=500 and k=20, at a correlation where guided is."""
    return Row(
        structure=structure,
        size=500,
        kept=20,
        rho=0.8 if algorithm.startswith("guided") else None,
        algorithm=algorithm,
        seeds=1,
        figures=Figures(
            calls=calls,
            answer=answer,
            ratio=ratio,
            minimal=1.0,
            true=true,
            again=again,
            forecasts=0.0,
            seconds=0.0,
            cut=0.0,
            rounds={1: calls, 4: calls / 3, 16: calls / 2},
        ),
    )


def found(letter: str, *rows: Row) -> list[Aim]:
    """Return the aims of a letter, checked on some rows."""
    return [aim for aim in aims(rows) if aim.name.startswith(f"({letter})")]


def held(letter: str, *rows: Row) -> list[bool]:
    """Tell of each aim of a letter that was checked whether it held."""
    return [not aim.missed for aim in found(letter, *rows) if aim.cells]


@pytest.mark.parametrize(("calls", "expected"), [(80.0, True), (81.0, False)])
def test_a_fifth_fewer_builds_is_four_fifths(calls: float, expected: bool) -> None:
    """Guided holds (b) with 80 builds against 100, not with 81."""
    assert [expected] == held("b", row("guided forecasts", calls), row("ddmin", 100.0))


def test_a_larger_set_is_no_rival() -> None:
    """A peer with a set more than 1% larger is not compared, one within 1% is."""
    guided = row("guided forecasts", 100.0)
    assert [] == held("d", guided, row("ddmin", 10.0, ratio=1.02))
    assert [False] == held("d", guided, row("ddmin", 10.0, ratio=1.005))


def test_lucky_answers_are_no_rivals() -> None:
    """A peer whose answers pass less often without noise is not compared."""
    guided = row("guided forecasts", 100.0)
    assert [] == held("d", guided, row("ddmin", 10.0, true=0.5))
    assert [False] == held("d", row("guided forecasts", 100.0, true=0.5), row("ddmin", 10.0))


def test_answers_that_a_fresh_build_refutes_are_counted_apart() -> None:
    """With noise, where they pass less often: they are rivals of the one count, not the other."""
    guided = row("guided forecasts", 100.0, again=0.9, structure="D")
    for again, expected in ((0.9, [False, False]), (0.6, [False])):
        rival = row("ddmin", 10.0, again=again, structure="D")
        assert expected == held("d", guided, rival)


def test_a_peer_that_proves_nothing_is_compared_with_the_answer() -> None:
    """Against a ranked prefix only guided's builds up to its answer count, not its proof."""
    guided = row("guided forecasts", 100.0, answer=9.0)
    assert [True] == held("d", guided, row("one at a time", 10.0))
    assert [False] == held("d", guided, row("probdd", 10.0))


def test_sizes_and_rounds_are_checked() -> None:
    """At correlation 0.8 a size may be 30% over the optimum; rounds are shares of the builds."""
    assert [True] == held("c", row("guided forecasts", 100.0, ratio=1.3))
    assert [False] == held("c", row("guided forecasts", 100.0, ratio=1.31))
    assert [True, False] == held("f", row("guided forecasts", 100.0))


def test_the_information_bound_counts_sets() -> None:
    """One of 8 layers is 3 bits, 5 of 500 are 38 as the literature has it."""
    assert 3.0 == information(8, 1)
    assert 38 == round(information(500, 5))
