"""What the final screen says of speed: the limits and how they are met, and a short front."""

import math
from collections.abc import Iterator, Sequence

from precision_bisect.errors import counted, first_of, printable
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.speed_report import (
    RANK_CORRELATIONS,
    FrontPoint,
    PlanToDeploy,
    SpeedReport,
)
from precision_bisect.runs.results.unseen import as_safe
from precision_bisect.runs.runfolder import FP32_MODEL
from precision_bisect.runs.saved_options import time_batch_of, typing_of
from precision_bisect_reports.rows import ALWAYS, EVIDENCE, NEWS, Form, Row

MOST_PLAN_ROWS = 8
FASTER = 1.05
"""Below this ratio two figures are called as fast."""
MOST_ISLANDS, LONGEST_NAME = 2, 28


def speed(result: Result) -> Iterator[Row]:
    """Yield the line of the speed limits, where there are any, and the lines of the front."""
    if result.speed is not None:
        infeasible = result.status is Status.INFEASIBLE
        limits = f"{result.speed.limits()} asked"
        words = limits if infeasible else _against_limits(result.speed, limits)
        yield Row("speed", words, NEWS, Form.FIGURE)
    if result.front and (result.speed is not None or result.front[0].latency_ms is None):
        # Where the limits exclude each other it is what there is instead of an answer.
        infeasible = result.status is Status.INFEASIBLE
        yield from _front(result.front, ALWAYS if infeasible else EVIDENCE)


def no_faster(result: Result) -> str:
    """Say where the low type, or this answer, is no faster than every layer high; "" elsewhere.

    Faster is what is so by more than the spread of the answer's latency.
    """
    timed, spread = result.latency_ms or {}, result.latency_spread_ms or 0.0
    high, low, kept = (timed.get(name) for name in ("all_high", "all_low", "kept"))
    deployed = None if result.deploy is None else result.deploy.latency
    if deployed is not None and (deployed.speedup or 0.0) >= FASTER:
        return ""  # the fused form, say
    if high is None:
        return ""
    beside = f"every layer high {high:.3g} ms" + (f", ± {spread:.2g}" if spread else "")
    if low is not None and low + spread >= high:
        return (
            f"{result.low.upper()} buys nothing here: every layer low takes {low:.3g} ms, {beside}"
        )
    if kept is None or kept + spread < high:
        return ""
    sentence = f"This answer is no faster than {result.high.upper()}: {kept:.3g} ms, {beside}"
    pays = [
        (point.kept_count, point.latency_ms)
        for point in result.curve
        if point.latency_ms is not None and point.latency_ms + spread < high
    ]
    if not pays:
        return sentence
    count, faster = max(pays)
    return f"{sentence}; {faster:.3g} ms with {counted(count, 'kept layer')}"


def to_deploy(result: Result) -> str:
    """Say what the fastest plan that holds comes to, or that FP32 is as fast; "" for none."""
    plan, tf32 = result.deploy, result.tf32
    if plan is None:
        return ""
    own = "the fewest layers" if result.kept else f"every layer in {result.low.upper()}"
    if not result.deploys_fewest:
        own = plan.words(result.low, result.high)
        own += "" if plan.error is None else f" (error {plan.error:.2g})"
    how = "by estimate " if plan.estimated else ""
    high = result.high.upper()
    if tf32 is not None and plan.rivals_tf32(tf32):
        error = "" if tf32.fp32_error is None else f" (error {tf32.fp32_error:.2g})"
        over = may_be_over(tf32.fp32_unseen)
        fp32, beside = f"FP32: TF32 holds{error}{over}", f"{high} with TF32{error}"
    else:
        fp32 = "FP32, the reference itself" if tf32 is None else "FP32 without TF32"
        if result.in_tf32:
            fp32 = "FP32 with TF32"
        beside = high
    if result.fp32_wins:
        if result.fp32_form is not None or result.interface is not None:
            # The file that was given has 16-bit floats of its own.
            fp32 = fp32.replace("FP32", f"FP32 ({FP32_MODEL})", 1)
        if result.gains_nothing and not result.deploys_fused:
            return fp32
        mixed = own if result.deploys_fewest else f"{deployed_as(result)}, {own}"
        if result.smallest:
            return f"{fp32}, whose weights take no more than those of {mixed}"
        gain = plan.fp32_gain(tf32)
        times = f"{gain:.2g} times as fast as" if gain >= FASTER else "as fast as"
        return f"{fp32}, {how}{times} {mixed}{_at_full_batch(plan, result)}"
    own += may_be_over(plan.unseen_share)
    own += f"; {weights(result)}" * result.smallest
    if plan.latency is not None:
        own_ms, speedup = plan.latency.median_ms, plan.latency.speedup
        times = f", {speedup:.3g} times as fast as {beside}" if speedup else ""
        fewest_ms = (result.latency_ms or {}).get("kept")
        if fewest_ms is not None and own_ms and not result.deploys_fewest:
            times += _faster(", ", fewest_ms / own_ms)
        return f"{own}: {own_ms:.3g} ms{times}"
    faster = _faster("", plan.answer_time / plan.time, ", ")
    return f"{own}; {how}{faster}{_gain(plan)} {_baseline(result)}"


def better_and_best(result: Result) -> tuple[str, str]:
    """Return what the plan to deploy is chosen to be, in words."""
    return ("smaller", "smallest") if result.smallest else ("faster", "fastest")


def deployed_as(result: Result) -> str:
    """Name the plan that stands beside the answer: where FP32 is deployed, it is not."""
    _, best = better_and_best(result)
    return f"the {best} mixed plan" if result.fp32_wins else "the plan to deploy"


def mark_in_charts(result: Result) -> str:
    """Name that plan in charts, where there is room for few words."""
    _, best = better_and_best(result)
    return f"{best} mixed" if result.fp32_wins else "to deploy"


def may_be_over(share: float | None) -> str:
    """Say what share of unseen inputs may be over, "" for a safe one, and where nothing tells."""
    if as_safe(share, None):
        return ""
    return f" (by how errors spread up to {share:.0%} of unseen inputs may be over)"


def error_beside(limit: float | None, error: float) -> str:
    """Return an error to two digits, to four where two are on the limit's other side."""
    text = f"{error:.2g}"
    hidden = limit is not None and (float(text) <= limit) != (error <= limit)
    return f"{error:.4g}" if hidden else text


def with_tf32(result: Result) -> str:
    """Say what TF32 makes of FP32 and of the answer; "" where nothing was evaluated."""
    judged = result.tf32
    if judged is None or judged.fp32_passed is None or judged.passed is None:
        return ""
    fp32, answer = (
        "" if error is None else f" (error {error_beside(result.limit, error)})"
        for error in (judged.fp32_error, judged.error)
    )
    if judged.fp32_passed:
        fp32 += may_be_over(judged.fp32_unseen)
    default = "with TF32, the libraries' default"
    leaves_fewest = result.promises_of == "fewest" or result.deploys_fewest
    plan = "the answer" if leaves_fewest else deployed_as(result)
    if not judged.passed:
        also = "holds" if judged.fp32_passed else "fails, too"
        how = ", by forecast" if judged.forecast else ""
        words = f"{plan} FAILS {default}{how}{answer}; FP32 {also}{fp32}; leave TF32 off"
    else:
        also = "holds, too" if judged.fp32_passed else "holds"
        holds = "holds" if judged.fp32_passed else "FAILS"
        words = f"FP32 {holds} {default}{fp32}; {plan} {also}{answer}"
    files = "; the files leave it off" if judged.passed and not result.tf32_on else ""
    if judged.fp32_ms is None or judged.speedup is None:
        return f"{words}{files}"
    words += f"; FP32 takes {judged.fp32_ms:.3g} ms so"
    if judged.fp32_wins:
        safe = as_safe(judged.fp32_unseen, None)
        wins = safe if result.deploy is None else result.fp32_wins
        return f"{words}, {plan} {1 / judged.speedup:.3g} times that{': deploy FP32' * wins}"
    return f"{words}, {plan} is {judged.speedup:.3g} times as fast{files}"


def fused_form(result: Result) -> str:
    """Say what the model with its norms put together came to, "" where that was not judged."""
    form = result.fused
    if form is None:
        return ""
    what = ", ".join(counted(n, printable(kind)) for kind, n in form.operators.items())
    if form.kept is None:
        low = "" if form.all_low is None else f" (every layer low: error {form.all_low:.2g})"
        early = " before the run ended early" * (result.status.cut_off or result.cut_short)
        return f"{what} put together: no plan was found to hold{early}{low}"
    error = "" if form.error is None else f" (error {form.error:.2g})"
    plan = f"{len(form.kept)} of {counted(form.candidates, 'layer')} stay {result.high.upper()}"
    better, _ = better_and_best(result)
    use = f"is no {better} than the plan to deploy"
    if result.deploys_fused:
        use = f"is {deployed_as(result)}" if result.fp32_wins else "is what to deploy"
    return f"{what} put together: {plan}{error}, which {use}"


def _at_full_batch(plan: PlanToDeploy, result: Result) -> str:
    """Say how much faster a plan is at a large batch that is slower than FP32 at the samples'."""
    gain, alike = 1 / plan.full_batch_time, plan.tf32 or not plan.rivals_tf32(result.tf32)
    if not plan.estimated or not alike or gain < FASTER:
        return ""
    advice = "" if time_batch_of(result.options) else ": --time-batch N"
    return f"; at a large batch the plan is {gain:.2g} times as fast by estimate{advice}"


def _gain(plan: PlanToDeploy) -> str:
    """Say how many times as fast a plan is by estimate, from one sample to a full batch."""
    gains = sorted((1 / plan.time, 1 / plan.full_batch_time))
    figures = list(dict.fromkeys(f"{gain:.2g}" for gain in gains))
    return "as fast as" if figures == ["1"] else f"{' to '.join(figures)} times as fast as"


def _baseline(result: Result) -> str:
    """Name what the estimates of the plan to deploy are shares of: every layer high, so set."""
    in_tf32 = result.deploy is not None and result.deploy.tf32
    holds = result.tf32 is not None and result.tf32.fp32_passed
    return f"{result.high.upper()}{' with TF32' * bool(in_tf32 and holds)}"


def _faster(before: str, times: float, after: str = "") -> str:
    """Say by how much a plan is faster than the fewest layers, "" if it is not."""
    percent = round(100 * (times - 1))
    return f"{before}{percent}% faster than the fewest{after}" if percent > 0 else ""


def how_fast(result: Result) -> str:
    """Say what the estimate of the plan to deploy rests on."""
    plan = result.deploy
    if plan is None or (result.gains_nothing and not result.deploys_fused):
        return ""
    parts = [
        f"by estimate {_gain(plan)} {_baseline(result)}, by batch",
        counted(plan.casts, "Cast"),
    ]
    if plan.low_share is not None:
        parts.append(plan.low_share.words(runs(result), result.low))
    if plan.rank_correlation is not None:
        least, most = RANK_CORRELATIONS
        parts.append(
            f"rank correlation of estimates on an H200: {plan.rank_correlation:.2f} "
            f"({least:g} to {most:g})"
        )
    return "; ".join(parts)


def weights(result: Result) -> str:
    """Say what the weights take with the plan to deploy, and with others."""
    plan = result.deploy
    if plan is None:
        return ""
    sizes = (plan.weight_bytes, plan.answer_weight_bytes, plan.high_weight_bytes)
    own, fewest, high = (f"{size / 2**20:.3g}" for size in sizes)
    return f"{own} MiB of weights, {fewest} with the fewest, {high} in {result.high.upper()}"


def runs(result: Result) -> str:
    """Return what low layers do: weakly typed, TensorRT takes FP32 for them where it is faster."""
    return "may run" if typing_of(result.fingerprint) == "weak" else "runs"


def cost(result: Result) -> str:
    """Say what the kept layers cost, and the dearest islands of them; "" where it is little."""
    costs = result.costs
    if costs is None or costs.total_ms is None or not costs.matter:
        return ""
    dear, count = costs.dearest, len(costs.islands)
    verb = "costs" if count == 1 else "cost"
    figures = f"{costs.cost_ms:.2g} of {costs.total_ms:.3g} ms"
    sentence = f"{counted(count, 'island')} of kept layers {verb} {figures}"
    if len(dear) < count:
        part = sum(island.saves_ms for island in dear)
        sentence += f", {counted(len(dear), 'island')} {part:.2g} of it"
    names = [_shown(island.name(result.module_of)) for island in dear]
    return f"{sentence}: {first_of(names, MOST_ISLANDS)}"


def _shown(name: str) -> str:
    name = printable(name)
    return name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}"


def _against_limits(report: SpeedReport, limits: str) -> str:
    if report.speedup is None or report.latency_ms is None:
        return f"{limits}, not measured"
    spread = 0.0 if report.speedup_spread is None else report.speedup_spread
    met = "met" if report.met else "not met"
    close = ", which is within the spread" if report.within_spread else ""
    return (
        f"{report.speedup:.3g} ± {spread:.2g} times as fast as all high, "
        f"{report.latency_ms:.3g} ms; {limits}: {met}{close}"
    )


def _front(front: Sequence[FrontPoint], level: int) -> Iterator[Row]:
    """Yield the front as a table of at most `MOST_PLAN_ROWS`: its ends, others spread evenly."""
    timed = front[0].latency_ms is not None
    head = f"{'kept':>6}  {'error':>9}  {'verdict':<7}"
    head += f"  {'ms':>9}  {'±':>7}  {'speed-up':>8}" if timed else "  cost"
    yield Row("front", head, level, Form.TABLE)
    for row in _spread(front):
        verdict = "pass" if row.passed else "fail"
        line = f"{row.kept_count:>6}  {_figure(row.error, '.3g'):>9}  {verdict:<7}"
        if timed:
            latency, spread = _figure(row.latency_ms, ".4g"), _figure(row.spread_ms, ".2g")
            line += f"  {latency:>9}  {spread:>7}  {_figure(row.speedup, '.3g'):>8}"
        else:
            line += f"  {_figure(row.cost, '.3g')} ms, estimated"
        yield Row("", line, level, Form.TABLE)


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _spread(front: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Return at most `MOST_PLAN_ROWS` rows: both ends, the last that passes, others in between."""
    if len(front) <= MOST_PLAN_ROWS:
        return list(front)
    step = (len(front) - 1) / (MOST_PLAN_ROWS - 1)
    chosen = {math.floor(step * number) for number in range(MOST_PLAN_ROWS)} | {len(front) - 1}
    return [front[place] for place in sorted(chosen)]
