"""Measuring a large model's layers one by one after all, once the ranking proves poor.

By blocks, a ranking costs little, and where it is good the layers that matter are in those that
were looked into. Where it is not, culprits are in any block, and what the emulator says of each
layer is worth more than it costs: a build takes as long as a great many forecasts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from precision_bisect.protocols import Problem, Search
from precision_bisect.sensitivity import Sensitivity, measure
from precision_bisect_strategies.beliefs import Beliefs
from precision_bisect_strategies.demotion import Demotion
from precision_bisect_strategies.probes import Line
from precision_bisect_strategies.units import Rated, Unit


def unknown(told: Sensitivity) -> list[int]:
    """Return the layers that share an error: what each adds of it is not known."""
    return [layer for layer in sorted(told.shared) if told.scores[layer] > 0.0]


def refined(problem: Problem, told: Sensitivity) -> Search[Sensitivity]:
    """Return the scores, with those measured that layers share so far."""
    layers = unknown(told)
    errors = yield from measure(problem, [(layer,) for layer in layers])
    scores = list(told.scores)
    for layer, error in zip(layers, errors, strict=True):
        scores[layer] = error
    return Sensitivity(scores, told.shared.difference(layers))


def loosened(state: Demotion, units: Sequence[Unit]) -> Demotion:
    """Return the state in which kept layers are undecided where others of their unit are.

    They act together: that keeping one was worth it alone says little.
    """
    unit_of = {layer: number for number, unit in enumerate(units) for layer in unit}
    kept = dict(state.kept)

    def found(positions: Iterable[int]) -> set[int]:
        return {unit_of[layer] for i in positions for layer in state.order[i]}

    def joined(positions: Sequence[int]) -> list[int]:
        here = found(positions)
        joining = [i for i in kept if not here.isdisjoint(found([i]))]
        for i in joining:
            del kept[i]
        return [*positions, *joining]

    suspects, waiting = (
        [replace(line, positions=joined(line.positions)) for line in lines]
        for lines in (state.suspects, state.waiting)
    )
    pool = joined(state.pool)
    return replace(state, kept=kept, suspects=suspects, waiting=waiting, pool=pool)


def cut(units: Sequence[Unit], state: Demotion) -> list[Unit]:
    """Return the units, cut where they hold layers of which the state knows different things."""
    groups: list[Iterable[int]] = [group for group, _ in state.lowered]
    groups += [line.positions for line in state.suspects + state.waiting]
    groups += [state.pool, state.kept]
    places = {
        layer: number
        for number, group in enumerate(groups)
        for i in group
        for layer in state.order[i]
    }
    parts: list[Unit] = []
    for unit in units:
        of_place: dict[int | None, list[int]] = {}
        for layer in unit:
            of_place.setdefault(places.get(layer), []).append(layer)
        parts += [tuple(part) for part in of_place.values()]
    return parts


def moved(
    state: Demotion, ranked: Sequence[Rated], beliefs: Beliefs, low: float | None
) -> Demotion:
    """Return the state along another ranking, and let `beliefs` learn from it.

    Its units are `cut` to the state. `low` is what all of them add, None where that is not known.
    """
    place = {layer: i for i, each in enumerate(ranked) for layer in each.unit}

    def at(positions: Iterable[int]) -> list[int]:
        return sorted({place[layer] for i in positions for layer in state.order[i]})

    if low is not None:
        beliefs.learn_sum(list(range(len(ranked))), low)
    lowered = [(at(group), added) for group, added in state.lowered]
    undecided = set(state.undecided)
    gone = [i for i in range(len(state.order)) if i not in state.kept and i not in undecided]
    beliefs.learn(at(gone), [], clean=True, bad=False)
    for group, added in lowered:
        beliefs.learn_sum(group, added, state.noise)
    kept: dict[int, float | None] = {}
    for i, error in state.kept.items():
        for position in at([i]):
            other = kept.get(position, error)
            kept[position] = None if error is None or other is None else max(error, other)
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
