"""Measuring a large model's layers one by one after all, once the ranking proves poor.

By blocks, a ranking costs little, and where it is good the layers that matter are in those that
were looked into. Where it is not, culprits are in any block, and what the emulator says of each
layer is worth more than it costs: a build takes as long as a great many forecasts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from precision_bisect.protocols import Problem, Search
from precision_bisect_strategies.beliefs import Beliefs
from precision_bisect_strategies.demotion import Demotion
from precision_bisect_strategies.probes import Line
from precision_bisect_strategies.ranking import Sensitivity, measure
from precision_bisect_strategies.units import Rated


def unknown(told: Sensitivity) -> list[int]:
    """Return the layers that share an error: what each adds of it is not known."""
    return [layer for layer in sorted(told.shared) if told.scores[layer] > 0.0]


def refined(problem: Problem, told: Sensitivity) -> Search[list[float]]:
    """Return the scores, with those measured that layers share so far."""
    layers = unknown(told)
    errors = yield from measure(problem, [(layer,) for layer in layers])
    scores = list(told.scores)
    for layer, error in zip(layers, errors, strict=True):
        scores[layer] = error
    return scores


def moved(
    state: Demotion, ranked: Sequence[Rated], beliefs: Beliefs, low: float | None
) -> Demotion:
    """Return the state along another ranking of the same units, and let `beliefs` learn from it.

    `low` is what all units add, None where that is not known.
    """
    place = {each.unit: i for i, each in enumerate(ranked)}

    def at(positions: Iterable[int]) -> list[int]:
        return sorted(place[state.order[i]] for i in positions)

    if low is not None:
        beliefs.learn_sum(list(place.values()), low)
    lowered = [(at(group), added) for group, added in state.lowered]
    undecided = set(state.undecided)
    gone = [i for i in range(len(state.order)) if i not in state.kept and i not in undecided]
    beliefs.learn(at(gone), [], clean=True, bad=False)
    for group, added in lowered:
        beliefs.learn_sum(group, added, state.noise)
    kept = {place[state.order[i]]: error for i, error in state.kept.items()}
    for i, error in kept.items():
        if not beliefs.tells_all(error, state.noise):
            beliefs.learn([i], [], clean=False, bad=False)
        if error is not None:
            beliefs.learn_sum([i], error, state.noise)
    suspects, waiting = (
        [replace(line, positions=at(line.positions)) for line in lines]
        for lines in (state.suspects, state.waiting)
    )
    for line in suspects + waiting:
        _suspect(beliefs, line, state.noise)
    return replace(
        state,
        order=[each.unit for each in ranked],
        beliefs=beliefs,
        suspects=suspects,
        pool=at(state.pool),
        kept=kept,
        lowered=lowered,
        waiting=waiting,
        raised=frozenset(at(state.raised)),
    )


def _suspect(beliefs: Beliefs, line: Line, noise: float) -> None:
    beliefs.learn(line.positions, [], clean=False, bad=False)
    if line.error is not None:
        beliefs.learn_sum(line.positions, line.error, noise)
