"""What the state of a demotion tests next, and what it learns of it."""

import random

import pytest

import oracles
from precision_bisect.plan import Plan
from precision_bisect.trial import Outcome, TrialStatus, Verdict
from precision_bisect_strategies.beliefs import Beliefs
from precision_bisect_strategies.demotion import Demotion
from precision_bisect_strategies.probes import Line, Passed, Probe


def test_a_cut_that_fails_within_one_that_passes_is_no_culprit() -> None:
    """Of nested groups the largest that passes is demoted, whatever failed within it."""
    size = 20
    scores = [float(place + 1) for place in range(size)]
    state = Demotion(
        order=[(layer,) for layer in range(size)],
        beliefs=Beliefs(scores, [1.0] * size, room=None, expected=3),
        limit=None,
        plan=Plan.all_high(size),
        error=None,
        suspects=[Line(list(range(size)), bad=True)],
        workers=4,
    )
    probes = [Probe(state.suspects[0], 0, end) for end in (2, 5, 9, 14)]
    errors = (2.0, 0.1, 0.2, 3.0)
    (taken,) = state.digest(probes, [oracles.outcome(error) for error in errors])
    assert taken.group == list(range(9))
    assert [line.positions for line in state.suspects] == [list(range(9, 14))]
    assert state.pool == list(range(14, size))


@pytest.mark.parametrize("workers", [2, 4])
def test_dense_suspects_are_tested_side_by_side(workers: int) -> None:
    """Where hardly a layer fits any more, nested groups would all fail: each is tested alone."""
    size, rest = 40, 12
    scores = [1.2**place for place in range(size)]
    total = sum(scores[: size - rest])
    beliefs = Beliefs(scores, [1.0] * size, room=total, expected=rest)
    beliefs.learn_sum(list(range(size)), sum(scores))
    last = list(range(size - rest, size))
    state = Demotion(
        order=[(layer,) for layer in range(size)],
        beliefs=beliefs,
        limit=total,
        plan=Plan.of(last),
        error=0.999 * total,
        suspects=[Line(last, bad=True, error=sum(scores[size - rest :]))],
        workers=workers,
        lowered=[(list(range(size - rest)), 0.999 * total)],
    )
    assert [probe.group for probe in state.probes(None, workers)] == [[i] for i in last[:workers]]


@pytest.mark.parametrize(("errors", "taken"), [((0.6, 0.3, 0.9), 1), ((0.6, 0.3, 0.6), None)])
def test_of_groups_whose_errors_overlap_the_cheapest_goes(
    errors: tuple[float, ...], taken: int | None
) -> None:
    """They add more than all layers do together: a price that none is worth says nothing."""
    size = 300
    beliefs = Beliefs([1.0] * size, [1.0] * size, room=1.0, expected=1)
    beliefs.learn_sum(list(range(size)), 1.1)
    state = Demotion(
        order=[(layer,) for layer in range(size)],
        beliefs=beliefs,
        limit=1.0,
        plan=Plan.all_high(size),
        error=0.0,
        suspects=[],
        workers=3,
        pool=list(range(size)),
        low_error=1.1,
    )
    line = Line(list(range(size)), bad=False)
    probes = [Probe(line, start, start + 20) for start in (0, 100, 200)]
    found = state.digest(probes, [outcome(error, 1.0) for error in errors])
    expected = [] if taken is None else [probes[taken].group]
    assert expected == [each.group for each in found]


def test_errors_of_single_layers_tell_that_a_ranking_is_poor() -> None:
    """Once nothing fits, all must stay, whatever the ranking: what they add tells how good it is.

    The last forty were measured to add the same as believed, or anything.
    """
    size, rest = 200, 40
    scores = [1.05**place for place in range(size)]
    total = sum(scores[: size - rest])
    found = []
    for spread in (0.0, 2.0):
        rng = random.Random(0)
        beliefs = Beliefs(scores, [1.0] * size, room=total, expected=rest)
        beliefs.learn_sum(list(range(size)), sum(scores))
        state = Demotion(
            order=[(layer,) for layer in range(size)],
            beliefs=beliefs,
            limit=total,
            plan=Plan.of(range(size - rest, size)),
            error=0.9999 * total,
            suspects=[],
            pool=list(range(size - rest, size)),
            lowered=[(list(range(size - rest)), 0.9999 * total)],
        )
        while not state.settled():
            (probe,) = state.probes(1, 1)
            true = sum(scores[i] * rng.lognormvariate(0.0, spread) for i in probe.group)
            state.digest([probe], [outcome(0.9999 * total + true, total)])
        found.append(state.beliefs.rho)
    assert found[1] < 0.9 < found[0]


def raised(size: int = 12) -> Demotion:
    """Return a state in which the first four layers were raised as a whole."""
    state = Demotion(
        order=[(layer,) for layer in range(size)],
        beliefs=Beliefs([1.0] * size, [1.0] * size, room=1.0, expected=3),
        limit=1.0,
        plan=Plan.of(range(6, size)),
        error=0.9,
        suspects=[],
        pool=list(range(6, size)),
        lowered=[([4, 5], 0.1)],
    )
    state.raise_part([0, 1, 2, 3], 0.8, outcome(0.1, 1.0))
    return state


def test_a_part_that_was_raised_is_looked_into_last() -> None:
    """It is undecided at once, and suspect when nothing else is."""
    state = raised()
    assert state.plan.kept == {0, 1, 2, 3, *range(6, 12)}
    assert (state.error, state.undecided) == (0.1, [0, 1, 2, 3, *range(6, 12)])
    assert not {0, 1, 2, 3}.intersection(i for probe in state.probes(None, 1) for i in probe.group)
    state.pool = []
    assert not state.settled()
    (probe,) = state.probes(None, 1)
    assert {0, 1, 2, 3}.issuperset(probe.group)
    assert (state.waiting, state.suspects[0].error) == ([], 0.8)


def test_copies_and_the_end_leave_no_part_waiting() -> None:
    """A copy goes its own way; going on from the best plan decides on all."""
    state = raised()
    other = state.copy()
    other.waiting.clear()
    assert state.waiting
    state.best = Passed(Plan.of((0, 7)), 0.5, 2.0)
    state.settle_for_best()
    assert state.settled()
    assert sorted(state.kept) == [0, 7]


def outcome(error: float, limit: float) -> Outcome:
    """Return the outcome of a trial of this error."""
    verdict = Verdict.PASS if error <= limit else Verdict.FAIL
    return Outcome(status=TrialStatus.FINISHED, verdict=verdict, error=error)
