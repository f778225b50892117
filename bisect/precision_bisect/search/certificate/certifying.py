"""The certificate's trials: the plan without each kept layer must fail.

k kept layers need k failing plans. A build is asked only where it can change the answer: a
forecast far beyond the tolerance stands for it, once builds have confirmed such forecasts.
"""

from collections.abc import Sequence

from precision_bisect.options import Certify
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.search.certificate.confirmed_forecasts import sample_of, standing
from precision_bisect.search.certificate.judged_trials import JudgedTrials, noting
from precision_bisect.search.certificate.sparing import forecast, misled
from precision_bisect.trial import Phase, Proposal

CERTIFYING = 4
"""Evaluations that an emulated certificate may take for each forecast of the ranking, so that it
takes no multiple of what came before."""
LEAST_RANKED = 64
"""Forecasts that a ranking counts for at least: small networks have their certificate in full."""


def certify(
    problem: Problem, plan: Plan, mode: Certify, trials: JudgedTrials | None = None, draw: int = 0
) -> Search[Plan]:
    """Try to drop every kept layer, and drop those that can go; return what is left.

    With `full` the plan without each layer is built, on a `draw` of copies if it is not 0. With
    `forecasts` those plans are forecast first. Those that may pass are built, then a random sample
    of the others; see `confirmed_forecasts`. A layer whose drop has no verdict stays. Where the
    emulator judges, it ends after `CERTIFYING` evaluations for each forecast of the ranking. The
    layers that were not tried by then are unproven.
    """
    trials = trials or JudgedTrials(tolerance=problem.tolerance, size=problem.size)
    if mode == "none":
        return plan
    return (yield from noting(_dropping(problem, plan, mode, trials, draw), trials))


def _dropping(
    problem: Problem, plan: Plan, mode: Certify, trials: JudgedTrials, draw: int
) -> Search[Plan]:
    others: list[int] = []
    while True:
        stand: list[int] = []
        # Forecasts of so few drops would all have to be confirmed.
        if mode == "forecasts" and trials.tolerance and sample_of(len(plan)) < len(plan):
            yield from forecast([plan.without((i,)) for i in plan.indices], trials)
            stand = standing(trials, plan, problem.seed)
        waiting = _waiting(problem, plan, trials, stand)
        # A search that was misled is better made again than mended layer by layer.
        if not waiting or misled(trials) or (_dear(trials) and not problem.builds):
            return plan
        plan, others = yield from _dropped(problem, plan, waiting, others, draw)


def _dear(trials: JudgedTrials) -> bool:
    """Tell whether the certificate has taken its share; one without a ranking has no bound."""
    most = CERTIFYING * max(LEAST_RANKED, len(trials.ranked))
    return bool(trials.ranked) and trials.certifying >= most


def _waiting(
    problem: Problem, plan: Plan, trials: JudgedTrials, stand: Sequence[int]
) -> dict[int, str]:
    """Return the layers whose drop is to be built, and why; those that may pass come first."""
    drops = {layer: plan.without((layer,)) for layer in plan.indices}
    drawn = stand[: sample_of(len(stand))]
    missed = trials.missed(plan)

    def expected(layer: int) -> float:
        outcome = trials.forecasts.get(drops[layer])
        error = None if outcome is None else outcome.error
        return missed.get(layer, 0.0) if error is None else error

    # By forecast: a layer that may pass is worth a build first, as it makes the answer smaller.
    near = sorted(drops.keys() - set(stand), key=lambda layer: (expected(layer), layer))
    return {
        layer: f"; forecast {expected(layer):.2g}" if drops[layer] in trials.forecasts else ""
        for layer in ([*drawn, *near] if trials.spared else [*near, *drawn])
        if not trials.tried(drops[layer], problem.tolerance)
    }


def _dropped(
    problem: Problem, plan: Plan, waiting: dict[int, str], others: Sequence[int], draw: int
) -> Search[tuple[Plan, list[int]]]:
    """Drop the first layers that wait, each alone, and `others` together if they are several.

    Returns two things. The plan, without the layer whose drop passed by most or without `others`.
    The layers whose drops passed besides, which are the next `others`.
    """

    def drop(layers: Sequence[int], why: str = "") -> Proposal:
        what = "one" if len(layers) == 1 else f"{len(layers)}"
        return Proposal(
            plan=plan.without(layers),
            phase=Phase.CERTIFICATE,
            draw=draw,
            reason=f"drop {what} of {len(plan)}{why}",
            narrowed_to=len(plan),
            about_left=len(waiting),
        )

    group = others if len(others) > 1 else ()
    # The group takes one of the workers.
    alone = [i for i in waiting if i not in group][: problem.workers - bool(group)]
    drops = [drop(group)] if group else []
    outcomes = yield (*drops, *(drop((layer,), waiting[layer]) for layer in alone))
    outcomes_alone = dict(zip(alone, outcomes[bool(group) :], strict=True))
    passed = sorted(
        (outcomes_alone[layer].error or 0.0, layer)
        for layer in alone
        if outcomes_alone[layer].passed
    )
    # Drops that pass one by one need not pass together, so only one goes; the next step tries the
    # rest as a group.
    gone = group if group and outcomes[0].passed else [layer for _, layer in passed[:1]]
    return plan.without(gone), [layer for _, layer in passed if layer not in gone]
