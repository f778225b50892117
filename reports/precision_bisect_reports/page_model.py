"""One model of a page: how a run ended, and what there is to say of it, each fact once.

The terminal, the report and notebooks lay it out. Names and messages come from untrusted files, so
every text is made printable here.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from precision_bisect.errors import counted, first_of, printable
from precision_bisect.runs.monitoring.run_watch import spent
from precision_bisect.runs.results.endings import CUT_SHORT, UNTRIED, WITHOUT_ANSWER, Status
from precision_bisect.runs.results.result import Result, Rung
from precision_bisect.runs.runfolder import RESULT
from precision_bisect.trial import Honour, LatencyMethod, TrialStatus
from precision_bisect_reports.by_output import by_output, in_decibels, kind_of_limit
from precision_bisect_reports.curve import curve, exported
from precision_bisect_reports.promise import (
    MOST_NAMED,
    by_defaults,
    deployed,
    doubtful,
    fails_elsewhere,
    foreign_to,
    in_range,
    made_up,
    must_not_be_used,
    overlooked,
    predicted,
    predicted_alone,
    proof,
    unseen,
)
from precision_bisect_reports.rows import ALWAYS, DETAIL, EVIDENCE, FULL, MORE, NEWS, Form, Row
from precision_bisect_reports.speed import (
    cost,
    fused_form,
    how_fast,
    no_faster,
    runs,
    speed,
    to_deploy,
    weights,
    with_tf32,
)

Tone: TypeAlias = Literal["good", "open", "bad"]
_METHODS: Mapping[LatencyMethod, str] = {
    "host_clock": "the host's clock",
    "cuda_events": "CUDA events",
    "cuda_graph": "the host's clock, CUDA graph",
}
_ENDINGS = {
    Status.FOUND: "Found",
    Status.NOTHING_TO_KEEP: "Nothing to keep",
    Status.NO_BASELINE: "No FP32 baseline",
    Status.NOT_PRECISION: "Not a precision problem",
    Status.INFEASIBLE: "No plan satisfies the limits",
    Status.BUDGET_EXHAUSTED: "Budget spent",
    Status.INTERRUPTED: "Interrupted",
    Status.ABORTED: "Aborted",
    Status.STOPPED: "Culprits only",
}
# What there is although the search was not over.
_ALL_THE_SAME = {
    **dict.fromkeys(
        (Status.BUDGET_EXHAUSTED, Status.INTERRUPTED, Status.ABORTED), "; best so far"
    ),
    Status.STOPPED: "; not within the tolerance",
}
NO_ANSWER = "No answer yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a run comes to: its ending, the answer or why there is none, and all rows in order.

    `ending` has few words, `head` those with what there is all the same, `sentence` goes on
    behind it, "" for nothing: the answer where the run is `answered`, else why it is not.
    `banner` is the gravest caveat, "" for none: it stands first where the plan is `refuted`.
    """

    ending: str
    head: str
    sentence: str
    answered: bool
    tone: Tone
    banner: str
    refuted: bool
    rows: Sequence[Row]

    @property
    def title(self) -> str:
        """The answer as a sentence of its own, else the head."""
        return self.sentence[:1].upper() + self.sentence[1:] if self.answered else self.head

    @property
    def headline(self) -> str:
        """The head, and its sentence."""
        return f"{self.head}: {self.sentence}" if self.sentence else self.head


def page_of(result: Result) -> Page:
    """Return what every page shows of a result."""
    ending, head, sentence = _headline(result)
    good = result.status.answers and not result.gains_nothing
    bad = result.status in (*WITHOUT_ANSWER, Status.ABORTED)
    # One caveat as the banner, the gravest; the others stand among the rows.
    (label, text, *_), *caveats = [*_caveats(result), Row("", "")]
    return Page(
        ending=ending,
        head=head,
        sentence=sentence,
        answered=result.answered,
        tone="good" if good else "bad" if bad else "open",
        banner=f"{label[:1].upper()}{label[1:]}: {text}" if label else text,
        refuted=result.refuted is not None,
        rows=[
            row
            for row in (*_leading(result), *caveats[:-1], *_rows(result))
            if row.text or row.form is Form.KEPT
        ],
    )


def _headline(result: Result) -> tuple[str, str, str]:
    """Return how a run ended, the head of its page, and the sentence behind that."""
    ending, high, low = _ENDINGS[result.status], result.high.upper(), result.low.upper()
    if result.status is Status.NOT_PRECISION and result.interface is not None:
        ending = "The interface alone is over the limit"
    elif result.status is Status.NOT_PRECISION and result.high != "fp32" and result.trials:
        ending = f"{high} alone is over the limit"
    if result.status in WITHOUT_ANSWER:
        return ending, ending, printable(result.message)
    if result.unanswered:
        nothing_low = f"no plan has passed yet that runs a layer in {low}"
        untold = nothing_low if result.layers_total else UNTRIED
        return ending, NO_ANSWER, printable(result.message) or untold
    if result.gains_nothing:
        every = "the one layer" if result.candidates == 1 else f"all {result.candidates} layers"
        gained = "Nothing gained"
        of_file = " of the file as it stands" * result.deploys_fused
        return gained, gained, f"every plan{of_file} that passed keeps {every} {high}"
    head = ending + ("; a near miss" if result.near_miss else _ALL_THE_SAME.get(result.status, ""))
    if len(result.rungs) > 2:
        return ending, head, _by_rung(result)
    if result.gains_little and result.low_share is None:
        return ending, head, f"{result.staying}, few run in {low}"
    how = runs(result)
    rest = f"the rest {how} in {low}"
    # A share of layers flatters where the few that stay have most of the work.
    if result.low_share is not None:
        rest = result.low_share.words(how, result.low)
    return ending, head, f"{result.staying}, {rest}"


def _by_rung(result: Result) -> str:
    """Return how many layers a ladder has in each type."""
    of = counted(sum(rung.count for rung in result.rungs), "layer")
    return f"of {of} {', '.join(words for rung in result.rungs for words in _on_rung(rung))}"


def _on_rung(rung: Rung) -> Iterator[str]:
    """Yield how many layers must be of a type, and how many more are, asked for or not lower."""
    name, layers = rung.precision.upper(), rung.layers
    if layers is not None:
        yield f"{len(layers)} must be {name}"
    rest = rung.count - len(layers or ())
    if rest or layers is None:
        yield f"{rest} {'more ' * (layers is not None)}run{'s' * (rest == 1)} {name}"


def _caveats(result: Result) -> Iterator[Row]:
    """Yield what speaks against the answer, or against trusting it, the gravest first."""
    caveats = [
        Row("", must_not_be_used(result), form=Form.REMARK),
        Row("", CUT_SHORT.capitalize() if result.cut_short else "", form=Form.REMARK),
        Row("no gain", no_faster(result)),
        Row("not judged", overlooked(result)),
        Row("unknown", foreign_to(result)),
        Row("elsewhere", fails_elsewhere(result)),
        *(row for row in deployed(result) if row.level == NEWS),
        *(row for row in _as_deployed(result) if row.level == NEWS),
        *(
            Row("range", in_range(input_range, result.low))
            for input_range in result.input_ranges
            if input_range.failed
        ),
        *(row for row in _interface(result) if row.level == NEWS),
        Row("inputs", made_up(result.inputs)),
        Row("predicted", predicted_alone(result), EVIDENCE),
    ]
    yield from (row for row in caveats if row.text)


def _as_deployed(result: Result) -> Iterator[Row]:
    """Yield what TF32 and the library's own options make of the answer: news where it suffers."""
    tf32, recheck = result.tf32, result.rechecked
    if tf32 is not None:
        # That FP32 is to be deployed is said where the plan to deploy is.
        expected = tf32.holds and (result.deploy is not None or not tf32.fp32_wins)
        told = EVIDENCE if result.deploy is None else DETAIL
        yield Row("TF32", with_tf32(result), told if expected else NEWS)
    if recheck is not None and (defaults := recheck.library_defaults):
        level = EVIDENCE if defaults.outcome == "pass" else NEWS
        yield Row("defaults", by_defaults(defaults, result), level)


def _interface(result: Result) -> Iterator[Row]:
    """Yield what 16-bit inputs and outputs cost alone: news where values are lost."""
    if result.interface is not None and result.status not in WITHOUT_ANSWER:
        level = NEWS if result.interface.lost else EVIDENCE
        yield Row("interface", printable(result.interface.words), level)


def _leading(result: Result) -> Iterator[Row]:
    """Yield the plan to deploy, the error with its limit, and the kept layers with the proof."""
    if words := to_deploy(result):
        yield Row("deploy", words, ALWAYS, Form.FIGURE)
    if not result.unanswered:
        yield from _error(result)
        if result.kept:
            yield Row("layers", "", ALWAYS, Form.KEPT)
            level = ALWAYS if doubtful(result) else NEWS
            yield Row("certificate", proof(result), level, Form.FIGURE)


def _rows(result: Result) -> Iterator[Row]:
    """Yield the other rows in the order of the screen."""
    if not result.unanswered:
        yield from _judged(result)
    yield from (row for row in _interface(result) if row.level != NEWS)
    if result.fp32_form is not None:
        yield Row("searched", searched_as(result), ALWAYS)
    if result.asked:
        by_type = Counter(order.precision.upper() for order in result.asked)
        counts = ", ".join(f"{count} {precision}" for precision, count in by_type.items())
        yield Row("asked for", f"{counts}; what is proven is of the others")
    if result.by_modules is not None:
        yield Row("modules", result.by_modules.words, EVIDENCE, Form.CHART)
    yield from curve(result)
    took = f"{spent(result.builds, result.evaluations)}, {result.wall_s:.0f} s"
    yield Row("effort", took, DETAIL)
    if result.unresolved:
        statuses = (f"{n} {status.replace('_', ' ')}" for status, n in result.unresolved.items())
        text = f"{', '.join(statuses)}: these count neither way"
        crash = printable(result.unresolved_why.get(TrialStatus.CRASHED, ""))
        text += f"; the last crash: {crash}" * bool(crash)
        yield Row("unresolved", text, NEWS if crash else EVIDENCE)
    yield from _engine(result)
    yield Row("fused", fused_form(result), NEWS if result.deploys_fused else EVIDENCE)
    yield Row("exports", exported(result))
    if result.deploy is not None:
        yield Row("how fast", how_fast(result), MORE)
        if result.deploy.high_weight_bytes:
            yield Row("weights", weights(result), FULL)
    yield from (row for row in _as_deployed(result) if row.level != NEWS)
    yield from (row for row in deployed(result) if row.level != NEWS)
    yield from _setting(result)
    for input_range in result.input_ranges:
        if not input_range.failed:
            yield Row("range", in_range(input_range, result.low), EVIDENCE)
    if result.answered:
        over = result.unseen is not None and result.unseen.failed
        yield Row("unseen", unseen(result), ALWAYS if over else EVIDENCE)
    if result.message and result.answered:
        # Why a run was aborted says what to do.
        level = ALWAYS if result.status is Status.ABORTED else NEWS
        yield Row("note", printable(result.message), level, Form.REMARK)


def _error(result: Result) -> Iterator[Row]:
    """Yield the error against its limit, with its range."""
    if result.error is None:
        if result.answered:
            check = "by the check's own word, without a figure"
            yield Row("verdict", check, ALWAYS, Form.FIGURE)
        return
    kind, limit = kind_of_limit(result), "1 (as a multiple of the given limits)"
    kind = kind or in_decibels(result)
    if isinstance(result.tolerance, int | float):
        limit = f"{result.tolerance:g}" + (kind and f" ({kind})")
    yield Row("error", f"{result.error_range}, tolerance {limit}", ALWAYS, Form.FIGURE)


def _judged(result: Result) -> Iterator[Row]:
    """Yield how the answer holds elsewhere, and the errors of each output."""
    if result.error is None:
        return
    if (stability := result.stability) is not None:
        passed = stability.copies - stability.failed
        checks = f"in {passed} of {stability.copies} checks with slight changes"
        label = "near miss" if result.near_miss else "holds"
        given = "passes on the samples as given, and " * result.near_miss
        yield Row(label, given + checks, NEWS if result.near_miss else EVIDENCE)
    if words := predicted(result):
        yield Row("target", words, EVIDENCE if result.other_targets else DETAIL)
    if result.loop is not None:
        yield Row("steps", result.loop.words, EVIDENCE)
    yield from by_output(result)


def _setting(result: Result) -> Iterator[Row]:
    """Yield what has judged, and by how many samples."""
    yield Row("backend", printable(result.backend), FULL)
    keys = ("strategy", "samples", "holdout")
    strategy, samples, holdout = (result.fingerprint.get(key) for key in keys)
    if strategy is not None:
        yield Row("strategy", printable(str(strategy)), FULL)
    if samples is not None:
        inputs = result.inputs
        repeated = f", {inputs.distinct} distinct" if inputs and inputs.repeated else ""
        held_out = f", {holdout} held out" if holdout else ""
        yield Row("samples", printable(f"{samples}{repeated}{held_out}"), FULL)


def searched_as(result: Result) -> str:
    """Say that a file was searched in its FP32 form, what it computes low, and what breaks there.

    A node that leaves the range in one sample at least is named.
    """
    form = result.fp32_form
    assert form is not None
    types = " and ".join(kind.upper() for kind in form.types)
    low = f"{len(form.layers)} of {counted(result.candidates, 'layer')} compute in {types}"
    sentence = f"in its FP32 form, which is the reference; in the file {low}"
    if form.overflowing:
        nodes = [printable(overflow.node) for overflow in form.overflowing]
        leave = "leaves" if len(nodes) == 1 else "leave"
        worst = max(overflow.samples for overflow in form.overflowing)
        of = counted(form.of_samples, "sample")
        sentence += f", and {first_of(nodes, MOST_NAMED)} {leave} the range in {worst} of {of}"
    return sentence


def _engine(result: Result) -> Iterator[Row]:
    """Yield what only an engine tells: speed, obedience, remarks; and what could not run low."""
    times = [
        f"{name.replace('_', ' ')} {ms:.3g} ms"
        for name, ms in (result.latency_ms or {}).items()
        if ms is not None
    ]
    if times:
        method = result.latency_method
        by = "" if method is None else f", by {_METHODS[method]}"
        if result.latency_batch is not None:
            by += f", at batch {result.latency_batch}"
        yield Row("latency", ", ".join(times) + by)
    yield Row("cost", cost(result), MORE, Form.CHART)
    yield from speed(result)
    by_honour = Counter(entry.honoured for entry in result.honoured_layers)
    if by_honour:
        counts = [
            f"{by_honour[honour]} {honour.replace('_', ' ')}"
            for honour in Honour
            if by_honour[honour]
        ]
        level = NEWS if by_honour[Honour.DEMOTED] else EVIDENCE
        yield Row("honoured", ", ".join(counts), level, Form.FIGURE)
    if result.pinned:
        names = first_of([printable(pin.layer) for pin in result.pinned], MOST_NAMED)
        low = f"in {result.low}" if len(result.rungs) <= 2 else "lower"
        pinned = f"{names}: cannot run {low}, see {RESULT}"
        yield Row("also high", pinned, MORE)
    for number, note in enumerate(result.notes):
        level = (ALWAYS, NEWS)[number] if number < 2 else DETAIL
        yield Row("remark", printable(note), level, Form.REMARK)
