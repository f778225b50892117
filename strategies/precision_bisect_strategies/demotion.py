"""The state of a progressive demotion: which layers are low, kept, suspect, or undecided.

The layers stand in a line, least sensitive first. The state holds a plan that passed, chooses the
groups to test on top of it, and digests what came of them. What passes at a fair price is
demoted. What fails, or costs more of the tolerance than other layers would, is suspect, and cut
where the beliefs put the culprit, down to one layer, which is kept. Nested adaptive group testing
(Hwang, JASA 1972) with a prior; the price is the Lagrange multiplier of a fractional knapsack.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from precision_bisect.plan import Plan
from precision_bisect.trial import Outcome
from precision_bisect_strategies.beliefs import Beliefs
from precision_bisect_strategies.neighbours import beside
from precision_bisect_strategies.probes import (
    Line,
    Passed,
    Probe,
    Taken,
    Tested,
    chances,
    cuts,
    disjoint,
)
from precision_bisect_strategies.saving import Fits
from precision_bisect_strategies.units import Unit

DOUBT = 2.0
"""So many times what two builds of one plan differ by may be no part of what a group added."""
DENSE = 0.6
"""Layers that may go with a smaller chance are tested side by side, not in nested groups."""
FAIR = 0.15
"""A build is worth it when it is expected to save this many layers."""
NOISY = 0.02
"""From this share of the tolerance on, noise hides what single layers add near it."""
MUCH = 0.5
"""A layer that alone adds this share of the limit does not stay for rounding errors."""
OVERLAP = 1.5
"""Errors overlap where groups add, each by itself, more than this times what all of them add."""
USELESS = 0.2
"""Below this expected correlation a ranking says less than which layers are neighbours."""

Lowered: TypeAlias = tuple[list[int], float]
"""The positions of a group that runs low, and what it added."""


@dataclass(slots=True)
class Demotion:
    """The state of one search; `order` are units of layers, least sensitive first.

    Positions in it are either `lowered` (in groups, with what each group added), `kept` (with the
    error that each would add, where it was measured), in one of the `suspects`, or in the `pool`
    of other undecided ones. `limit` is the tolerance, None where there are no figures. `plan` has
    passed and `error` is its own; while a bet is open (see `rounds`) it only should pass, with
    about that error. `largest` is the size of the largest group to try, where larger ones had no
    verdict. `noise` is what two builds of one plan differ by. `best` is
    the cheapest plan that dropping one group led to, where builds are noisy. `chosen` is what the
    emulator would keep, `low_error` the error of every layer low. `waiting` are parts of low
    groups that were `raised` as a whole: they are looked into once nothing else is undecided.
    """

    order: Sequence[Unit]
    beliefs: Beliefs
    limit: float | None
    plan: Plan
    error: float | None
    suspects: list[Line]
    workers: int = 1
    pool: list[int] = field(default_factory=list)
    kept: dict[int, float | None] = field(default_factory=dict)
    lowered: list[Lowered] = field(default_factory=list)
    largest: int | None = None
    noise: float = 0.0
    best: Passed | None = None
    chosen: Plan = field(default_factory=lambda: Plan.of(()))
    low_error: float | None = None
    waiting: list[Line] = field(default_factory=list)
    raised: frozenset[int] = frozenset()

    def copy(self) -> "Demotion":
        """Return a state that goes its own way from here."""
        return replace(
            self,
            beliefs=self.beliefs.copy(),
            suspects=list(self.suspects),
            pool=list(self.pool),
            kept=dict(self.kept),
            lowered=list(self.lowered),
            waiting=list(self.waiting),
        )

    def settled(self) -> bool:
        """Keep the last ones of suspect groups; tell whether every position is decided on."""
        for line in [line for line in self.suspects if len(line.positions) == 1]:
            self.suspects.remove(line)
            error = line.error
            known = error is not None and math.isfinite(error)
            self.kept[line.positions[0]] = error if known else None
        return not (self.suspects or self.pool or self.waiting)

    @property
    def beaten(self) -> bool:
        """Whether a plan passed that costs no more than what is kept already, under noise.

        What groups add says little then, and what it led to is not worth going on with.
        """
        if self.best is None:
            return False
        return self.best.cost <= self.cost(list(self.kept))

    @property
    def room(self) -> float:
        """The error that can still be added; infinity without figures."""
        if self.limit is None or self.error is None:
            return math.inf
        return self.limit - self.error

    @property
    def measured(self) -> dict[int, float]:
        """What each kept position adds, of those that were measured."""
        return {i: error for i, error in self.kept.items() if error is not None}

    @property
    def undecided(self) -> list[int]:
        """The positions that are suspect, wait, or are in the pool."""
        lines = self.suspects + self.waiting
        return [i for line in lines for i in line.positions] + self.pool

    @property
    def price(self) -> float:
        """The error per cost at which keeping a layer begins to pay."""
        return self.beliefs.price(self.room, self.undecided, self.measured)

    def without(self, group: Sequence[int]) -> Plan:
        """Return the plan without the layers at these positions."""
        return self.plan.without(layer for i in group for layer in self.order[i])

    def with_(self, group: Sequence[int]) -> Plan:
        """Return the plan with the layers at these positions kept, too."""
        return self.plan.with_(layer for i in group for layer in self.order[i])

    def probes(self, guess: int | None, count: int) -> list[Probe]:
        """Choose at most `count` groups; `guess` is where a suspect line is cut at first."""
        if not (self.suspects or self.pool):
            self.suspects, self.waiting = self.waiting, []
        self._arrange()
        if count > 1 and guess is None:
            self._release()
        lines = self.suspects[:count]
        groups = disjoint(self.beliefs, self.pool, count - len(lines), self.largest, self.room)
        free = count - len(groups)
        chosen: list[Probe] = []
        for number, line in enumerate(lines):
            share = (free - len(chosen)) // (len(lines) - number)
            nested = cuts(self.beliefs, line, share, self.largest, self.room, guess)
            chosen += [Probe(line, 0, cut) for cut in nested]
        return chosen + groups

    def _arrange(self) -> None:
        """Put what is undecided in order: along the ranking, or the network if it is useless.

        What must be kept often lies together there. Where errors do not add up, likely neighbours
        of kept layers come last.
        """
        useless = self.beliefs.rho < USELESS
        near = {} if self.beliefs.figures else self._beside_kept()
        self.beliefs.expect(near)

        def arranged(positions: list[int]) -> list[int]:
            return sorted(positions, key=lambda i: (i in near, self.order[i] if useless else (i,)))

        self.pool = arranged(self.pool)
        self.suspects = [
            replace(line, positions=arranged(line.positions)) for line in self.suspects
        ]

    def _release(self) -> None:
        """Make suspect lines undecided that likely hold many culprits.

        Of nested groups all would fail. That there is one among so many says nothing.
        """
        for line in list(self.suspects):
            if len(line.positions) > self.workers:
                first = Line(line.positions[:1], bad=False)
                if chances(self.beliefs, first, self.room)[0] < DENSE:
                    self.suspects.remove(line)
                    self.pool = self.pool + line.positions
        self._arrange()

    def _beside_kept(self) -> dict[int, float]:
        """Return the undecided positions beside kept ones that likely must stay; see `beside`.

        Kept ones that add little each tell nothing: rounding errors do not come in runs.
        """
        at = {layer: i for i in self.undecided for layer in self.order[i]}
        kept = [
            layer
            for i, error in self.kept.items()
            if error is None or self.limit is None or error >= MUCH * self.limit
            for layer in self.order[i]
        ]
        found = beside(kept, at.keys(), self.chosen.kept)
        return {at[layer]: chance for layer, chance in found.items()}

    def digest(self, probes: Sequence[Probe], outcomes: Sequence[Outcome]) -> list[Taken]:
        """Learn from a round; return the groups that passed at a fair price, disjoint ones."""
        pairs = list(zip(probes, outcomes, strict=True))
        price = self.price
        for probe, outcome in pairs:
            if outcome.passed and self.noise > 0:
                self._note(self.without(probe.group), outcome.error)
        taken = []
        for line in {id(probe.line): probe.line for probe in probes}.values():
            judge = self._nested if line.bad else self._disjoint
            taken += judge(line, [pair for pair in pairs if pair[0].line is line], price)
        if any(outcome.verdict for outcome in outcomes):
            self.largest = None
        return taken

    def _note(self, plan: Plan, error: float | None) -> None:
        best = Passed(plan, error, self.cost(self._inside(plan)))
        if self.best is None or best.cost < self.best.cost:
            self.best = best

    def _inside(self, plan: Plan) -> list[int]:
        kept = plan.kept
        return [i for i, unit in enumerate(self.order) if not kept.isdisjoint(unit)]

    def cost(self, group: list[int]) -> float:
        """Return what keeping these positions costs."""
        return self.beliefs.cost(group) * len(group) if group else 0.0

    @property
    def usual(self) -> float:
        """What keeping a layer costs on average."""
        every = list(range(len(self.order)))
        return self.cost(every) / sum(len(unit) for unit in self.order)

    def settle_for_best(self) -> None:
        """Go on from the cheapest plan that passed: what it keeps is kept, everything else low."""
        if self.best is None:
            return
        self.plan, self.error = self.best.plan, self.best.error
        self.kept = {i: self.kept.get(i) for i in self._inside(self.plan)}
        self.suspects, self.pool, self.lowered, self.waiting = [], [], [], []

    def take(self, taken: Taken, error: float | None) -> None:
        """Go on from the plan without this group, of this error; it passed, or is bet to."""
        gone = frozenset(taken.group)
        self.pool = [i for i in self.pool if i not in gone]
        self.plan, self.error = self.without(taken.group), error
        if taken.added is not None:
            self.lowered.append((taken.group, taken.added))

    def raise_again(self, groups: Sequence[Lowered], error: float | None) -> None:
        """Suspect low groups again; the plan that keeps them passed with `error`."""
        self.plan, self.error = self.with_([i for group, _ in groups for i in group]), error
        self.lowered = [each for each in self.lowered if each not in groups]
        self.suspects += [Line(group, bad=True, error=added) for group, added in groups]

    def raise_part(self, part: list[int], error: float, outcome: Outcome) -> None:
        """Keep a part of the low groups that adds `error`; the plan that does passed."""
        self.plan, self.error = self.with_(part), outcome.error
        self.waiting.append(Line(part, bad=True, error=error))
        self.raised |= frozenset(part)

    def put_back(self, taken: Sequence[Taken]) -> None:
        """Make groups undecided again that did not pass together with others."""
        self.pool = [*self.pool, *(i for each in taken for i in each.group)]

    def _nested(self, line: Line, mine: Sequence[Tested], price: float) -> list[Taken]:
        """Judge a suspect line's cuts that have verdicts, the nearest first, until one fails.

        One that fails within one that passes says nothing: it was bad luck, or keeping more hurt.
        Under a right ranking the farthest that passes is taken if it is fair as a whole.
        """
        self.suspects.remove(line)
        taken: list[Taken] = []
        done, spent = 0, 0.0
        told = [pair for pair in mine if pair[1].verdict]
        farthest = max((at for at, pair in enumerate(told) if pair[1].passed), default=0)
        passed = [pair for pair in told[: farthest + 1] if pair[1].passed]
        failed = told[farthest + 1 :] if passed else told
        if len(passed) > 1 and self.beliefs.nearly_right:
            probe, outcome = passed[-1]
            if self.fair(line.positions[: probe.end], self._added(outcome), price):
                passed = passed[-1:]
        told = passed + failed
        for probe, outcome in told or mine[:1]:
            group, rest = line.positions[done : probe.end], line.positions[probe.end :]
            if outcome.verdict is None:
                if not self._given_up(group):
                    break
                self.pool = self.pool + rest
                return taken
            added = self._added(outcome, spent)
            fair = outcome.passed and self.fair(group, added, price)
            self._learn(group, rest, added, clean=fair, bad=True)
            if not fair:
                self.suspects.append(Line(group, bad=True, error=added))
                self.pool = self.pool + rest
                return taken
            done, spent = probe.end, spent + (added or 0.0)
            taken = [Taken(line.positions[:done], None if added is None else spent, outcome)]
        left = None if line.error is None else line.error - spent
        self.suspects.append(Line(line.positions[done:], bad=True, error=left))
        return taken

    def _disjoint(self, _: Line, mine: Sequence[Tested], price: float) -> list[Taken]:
        """Judge groups of the pool, each by itself; the cheapest of those that overlap is fair."""
        taken = []
        overlapping = self._overlapping(mine)
        for probe, outcome in mine:
            group = probe.group
            if outcome.verdict is None and not self._given_up(group):
                continue
            self.pool = [i for i in self.pool if i not in set(group)]
            if outcome.verdict is None:
                continue
            added = self._added(outcome)
            fair = outcome.passed and (probe is overlapping or self.fair(group, added, price))
            self._learn(group, [], added, clean=fair, bad=False)
            if fair:
                taken.append(Taken(group, added, outcome))
            else:
                self.suspects.append(Line(group, bad=True, error=added))
        return taken

    def _overlapping(self, mine: Sequence[Tested]) -> Probe | None:
        """Return the cheapest of groups whose errors overlap, of those that passed.

        So they do where they add more, each by itself, than all that is left adds together. Prices
        say little then: each adds less once others run low. Noise would look the same.
        """
        if self.low_error is None or self.error is None or len(mine) < 2:
            return None
        if self.limit is None or self.noise >= NOISY * self.limit:
            return None
        total = 0.0
        passed: list[tuple[float, Probe]] = []
        for probe, outcome in mine:
            added = self._added(outcome)
            if added is not None and math.isfinite(added):
                total += added
                if outcome.passed and len(probe.group) > 1:
                    passed.append((added / self.cost(probe.group), probe))
        if not total > OVERLAP * (self.low_error - self.error):
            return None
        return min(passed, key=lambda each: each[0], default=(0.0, None))[1]

    def _learn(
        self, group: list[int], rest: list[int], added: float | None, *, clean: bool, bad: bool
    ) -> None:
        if clean or len(group) > 1 or not self.beliefs.tells_all(added, self.noise):
            self.beliefs.learn(group, rest, clean=clean, bad=bad)
        if added is not None:
            self.beliefs.learn_sum(group, added, self.noise)

    def _given_up(self, group: list[int]) -> bool:
        """Go round a group without a verdict: try smaller ones; a single layer is kept."""
        if len(group) > 1:
            self.largest = len(group) // 2
            return False
        self.kept[group[0]] = None
        return True

    def _added(self, outcome: Outcome, spent: float = 0.0) -> float | None:
        """Return the error that a group added beside `spent`; None without figures."""
        if outcome.error is None or self.error is None or math.isnan(outcome.error):
            return None
        return max(outcome.error - self.error - spent, 0.0)

    def fair(self, group: list[int], added: float | None, price: float) -> bool:
        """Tell whether what a group added buys as much as it would elsewhere."""
        if not added or not math.isfinite(price):
            return True
        fair = 0.0 if len(group) == 1 else self.beliefs.fair_sum(group, price, added)
        sure = max(added - DOUBT * self.noise, 0.0)
        regret = (sure - fair) / (price * self.beliefs.cost(group)) - 1
        if regret <= FAIR * (1 + math.log2(len(group)) / 2):
            return True
        return len(group) == 1 and self.beliefs.certain and self._as_good(group[0], added)

    def _as_good(self, position: int, added: float) -> bool:
        """Tell whether as many layers can go with this one first as with the cheapest first."""
        known = self.measured
        others = [i for i in self._inside(self.plan) if i != position and i not in self.kept]
        cost = self.beliefs.cost([position])
        best = Fits(self.beliefs, others, known | {position: added}).expected(self.room)
        after = Fits(self.beliefs, others, known).expected(self.room - added)
        return best - (cost + after) <= FAIR * cost
