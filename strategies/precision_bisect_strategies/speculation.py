"""Looking ahead: turns a search that asks one question at a time into batches for workers.

While an answer is awaited, the next question of a sequential search is known for each possible
answer. So the likeliest next questions are asked at the same time, and answers that are not needed
yet are remembered. Parallel ddmin does that within one granularity (Hodovan, Kiss, A-TEST 2016).
Here it goes on beyond the next decision, for any search.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.trial import Outcome, Proposal, TrialStatus, Verdict

S = TypeVar("S")
Step = Callable[[S], Search[S]]
"""A part of a search: asks one plan at a time by `ask`, and returns the next state."""
Answers = Mapping[Plan, Outcome]

PASSED = Outcome(status=TrialStatus.FINISHED, verdict=Verdict.PASS)
FAILED = Outcome(status=TrialStatus.FINISHED, verdict=Verdict.FAIL)
MEMORY = 0.8
"""Weight of older outcomes against the last one, in the running estimate of the share of plans
that pass. Half: builds +3%; double: no more than chance, in benchmarks/constants.py."""
LOOKS = 8
"""States looked at for each worker, before workers are left idle: a bound on the search's own
time."""


def speculate(
    problem: Problem, step: Step[S], state: S, answers: dict[Plan, Outcome] | None = None
) -> Search[S]:
    """Return the state at which `step` asks nothing more, beginning at `state`.

    Batches hold up to `problem.workers` plans: the one that `step` asks, then those that it would
    ask next, likeliest first. No plan is asked twice, nor the two that the preflight decided.
    Several searches in a row share `answers`, which grow.

    A step must depend only on its state and on outcomes: to look ahead it is replayed from its
    beginning. A step of q questions is replayed q times, so steps should ask one question.
    """
    answers = {} if answers is None else answers
    answers.setdefault(Plan.all_high(problem.size), PASSED)
    answers.setdefault(Plan.of(()), FAILED)
    chance = 0.5
    place = _follow(step, _Place(state=state), answers)
    while place.asks is not None:
        batch = tuple(_likeliest(step, place, answers, chance, problem.workers))
        outcomes = yield batch
        answers |= {
            proposal.plan: outcome for proposal, outcome in zip(batch, outcomes, strict=True)
        }
        # Only the first of a batch was asked for certain; the others were bets.
        chance = MEMORY * chance + (1 - MEMORY) * outcomes[0].passed
        place = _follow(step, place, answers)
    return place.state


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place(Generic[S]):
    """A point of a search: a state, what its step was told since, and what it asks now.

    `asks` is None at the end. `assumed` are made-up answers on the way here.
    """

    state: S
    told: tuple[Outcome, ...] = ()
    asks: Proposal | None = None
    assumed: Answers = field(default_factory=dict)


def _follow(step: Step[S], place: _Place[S], answers: Answers) -> _Place[S]:
    """Return where the search gets to from `place` by answers that are known or assumed."""
    state, outcomes = place.state, list(place.told)
    while True:
        search = step(state)
        try:
            (proposal,) = next(search)
            for outcome in outcomes:
                (proposal,) = search.send((outcome,))
            while answer := answers.get(proposal.plan) or place.assumed.get(proposal.plan):
                outcomes.append(answer)
                (proposal,) = search.send((answer,))
            return replace(place, state=state, told=tuple(outcomes), asks=proposal)
        except StopIteration as end:
            state = end.value
            # A step that asks nothing leaves its state as it is: the search has ended.
            if not outcomes:
                return replace(place, state=state, told=(), asks=None)
            outcomes = []


def _likeliest(
    step: Step[S], place: _Place[S], answers: Answers, chance: float, workers: int
) -> Iterator[Proposal]:
    """Yield the question at `place`, then the likeliest next ones.

    `chance` is the estimated share of plans that pass.
    """
    now = place.asks
    chosen: set[Plan] = set()
    # A heap of negated likelihoods; the number breaks ties, since places do not compare.
    waiting = [(-1.0, 0, place)]
    for look in range(LOOKS * workers):
        if not waiting:
            return
        likelihood, _, place = heapq.heappop(waiting)
        if now is None or place.asks is None:
            continue
        proposal = place.asks
        if proposal.plan not in chosen:
            chosen.add(proposal.plan)
            yield replace(proposal, narrowed_to=now.narrowed_to, about_left=now.about_left)
        if len(chosen) == workers:
            return
        # Best-first over the tree of possible answers: both answers become places to go on from.
        for turn, (answer, share) in enumerate(((FAILED, 1 - chance), (PASSED, chance))):
            assumed = {**place.assumed, proposal.plan: answer}
            ahead = _follow(step, replace(place, assumed=assumed), answers)
            heapq.heappush(waiting, (likelihood * share, 2 * look + turn, ahead))
