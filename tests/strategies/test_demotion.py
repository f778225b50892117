"""What the state of a demotion tests next, and what it learns of it."""

import random

import pytest

import oracles
from precision_bisect.plan import Plan
from precision_bisect.trial import Outcome, TrialStatus, Verdict
from precision_bisect_strategies.beliefs import Beliefs
from precision_bisect_strategies.demotion import Demotion
from precision_bisect_strategies.probes import Line, Probe


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


def outcome(error: float, limit: float) -> Outcome:
    """Return the outcome of a trial of this error."""
    verdict = Verdict.PASS if error <= limit else Verdict.FAIL
    return Outcome(status=TrialStatus.FINISHED, verdict=verdict, error=error)
