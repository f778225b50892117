"""Progressive demotion, round by round, from all-high downwards.

Each round tests groups on top of the last plan that passed. With several workers these are nested
ones where one culprit is sought, and disjoint ones elsewhere. Those that pass are demoted
together; that this passes, too, is tested with the next round's groups, which are taken on top of
it. The loop of onnxconverter-common's mixed precision (the largest undecided segment, halved on
failure), with a ranking, informed cuts and a price.
"""

from collections.abc import Sequence

from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect.trial import Proposal
from precision_bisect_strategies.demotion import Demotion, Probe, Taken
from precision_bisect_strategies.spending import audit


def demote(state: Demotion, guess: int) -> Search[None]:
    """Decide on every position; the first group is the first `guess` positions."""
    first: int | None = guess
    audited = False
    merged: list[Taken] = []
    while not state.settled() or merged:
        probes = state.probes(first, state.workers - bool(merged))
        first = None
        if not (merged or audited or state.suspects) and len(probes[0].group) == 1:
            audited = True
            yield from audit(state)
            continue
        ahead = state.without([i for each in merged for i in each.group])
        outcomes = yield (
            *_merging(merged, ahead),
            *(_dropping(state, ahead, probe) for probe in probes),
        )
        if merged:
            together, outcomes = outcomes[0], outcomes[1:]
            if not together.passed:
                best = min(merged, key=lambda each: (each.added or 0.0) / len(each.group))
                state.put_back([each for each in merged if each is not best])
                state.take([best], state.without(best.group), best.outcome.error)
                merged = []
                continue
            state.take(merged, ahead, together.error)
        merged = _merge(state, state.digest(probes, outcomes))


def _merge(state: Demotion, taken: list[Taken]) -> list[Taken]:
    """Take one group; of several return those that should fit together, cheapest first."""
    fitting: list[Taken] = []
    left = state.room
    for each in sorted(taken, key=lambda each: (each.added or 0.0) / len(each.group)):
        left -= each.added or 0.0
        if left >= 0 or not fitting:
            fitting.append(each)
    state.put_back([each for each in taken if each not in fitting])
    if len(fitting) == 1:
        (only,) = fitting
        state.take([only], state.without(only.group), only.outcome.error)
        return []
    return fitting


def _merging(merged: Sequence[Taken], ahead: Plan) -> tuple[Proposal, ...]:
    if not merged:
        return ()
    return (Proposal(plan=ahead, reason=f"{len(merged)} groups that passed, together"),)


def _dropping(state: Demotion, ahead: Plan, probe: Probe) -> Proposal:
    layers = [layer for i in probe.group for layer in state.order[i]]
    return Proposal(
        plan=ahead.without(layers),
        reason=f"drop {len(layers)} of {len(ahead)}",
        narrowed_to=len(ahead),
        about_left=sum(len(line.positions) for line in state.suspects) + len(state.pool),
    )
