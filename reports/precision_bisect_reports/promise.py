"""What an answer promises: of layers, unseen inputs, ranges, other targets, and where deployed."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from precision_bisect.errors import counted, first_of, printable
from precision_bisect.precisions import HALF_NAMES
from precision_bisect.runs.results.causes import Cause
from precision_bisect.runs.results.certificates import Certificate, Need, Uncertified
from precision_bisect.runs.results.chosen_point import kept_in_files
from precision_bisect.runs.results.deployment import ByDefaults, Recheck
from precision_bisect.runs.results.other_targets import InputRange, OnTargets
from precision_bisect.runs.results.result import Inputs, Result
from precision_bisect.runs.results.unseen import NETWORKS, Calibrating, Unseen
from precision_bisect.runs.runfolder import MIXED_MODEL, RUN_SCRIPT
from precision_bisect.settings.sample_options import DEFAULT_TOLERANCE, snr_of
from precision_bisect.settings.targets import LABELS, STORED, TARGETS, TargetChoice, TargetName
from precision_bisect_reports.rows import DETAIL, EVIDENCE, NEWS, Row

MOST_NAMED = 3
"""Of more names so many are shown."""


def proof(result: Result) -> str:
    """Return the line for a plan that keeps at least one layer."""
    certificate, modules = result.certificate, result.by_modules
    if modules is not None and _minimal_by_modules(result):
        which = "the one module fails, as" if len(modules.names) == 1 else "any one fails, each"
        return f"{certified(result)}: dropping {which} was tried"
    kept = len(certificate.evidence) or len(certificate.checked) + len(certificate.unchecked)
    if certificate.minimal:
        tried = "the one layer fails, as" if kept == 1 else f"any one of the {kept} fails, each"
        alone = _on_copies_alone(certificate.on_copies_alone, kept)
        return f"{certified(result)}: dropping {tried} was tried{alone}"
    if certificate.minimal_at_limit:
        return (
            f"{_below(certificate)}, which leaves room for the noise; by the tolerance itself "
            f"{len(certificate.checked)} of {kept} are needed"
        )
    # Where luck decides, drops prove nothing, however many were tried.
    if certificate.spread:
        return "none: more layers may be kept than needed, and luck decides which"
    predicted, forecasts = len(certificate.predicted), certificate.forecasts
    if certificate.minimal_by_forecasts and forecasts is not None:
        return (
            f"{_below(certificate)} by builds and forecasts: {kept} needed, "
            f"{kept - predicted} by builds, {predicted} by forecasts that were right in "
            f"{forecasts.right} of {forecasts.builds} builds; "
            f"{forecasts.confidence:.0%} confident that "
            + (
                f"at most {forecasts.wrong_at_most} can go"
                if forecasts.wrong_at_most
                else "none can go"
            )
        )
    unproven = Counter(_state(need) for need in certificate.evidence if not need.needed)
    parts = [f"{len(certificate.checked)} of {kept} drops were tried and failed"]
    parts += [f"{count} {printable(state)}" for state, count in unproven.items()]
    return f"not proven minimal: {', '.join(parts)}"


def _on_copies_alone(layers: int, kept: int) -> str:
    """Say how many drops the samples as given pass, "" for none."""
    if not layers:
        return ""
    which = (
        "it passes" if kept == 1 else "all pass" if layers == kept else f"{layers} of them pass"
    )
    return f"; on the samples as given {which}, and on copies with slight changes not"


def _minimal_by_modules(result: Result) -> bool:
    """Whether the answer of --by module is of modules of which none can be dropped."""
    modules = result.by_modules
    wanted = result.certificate.uncertified is Uncertified.MODULES
    return wanted and modules is not None and modules.minimal


def doubtful(result: Result) -> bool:
    """Whether some kept layers may not be needed: what stays is no short list of culprits."""
    certificate = result.certificate
    proven = certificate.minimal or certificate.minimal_at_limit
    return not (proven or certificate.minimal_by_forecasts or _minimal_by_modules(result))


def certified(result: Result) -> str:
    """Return in a few words what is proven."""
    certificate = result.certificate
    if certificate.minimal:
        return "minimal"
    if _minimal_by_modules(result):
        return "minimal by modules"
    by_forecasts = certificate.minimal_by_forecasts and not certificate.minimal_at_limit
    return "minimal by builds and forecasts" if by_forecasts else "not proven minimal"


def _below(certificate: Certificate) -> str:
    """Return "minimal", with the limit of a search that stayed below the tolerance."""
    return f"minimal below {certificate.limit:.4g}" if certificate.limit else "minimal"


def _state(need: Need) -> str:
    """Return what is known of a layer that is not shown to be needed."""
    if need.needed is False:
        return "could go"
    if need.how == "predicted":
        return "forecast to fail"
    return f"not tested ({need.status or need.reason})"


def unseen(result: Result) -> str:
    """Return the promise, or that there is none and what was seen of others; "" for nothing."""
    promise = result.unseen
    if promise is None:
        return ""
    if promise.judged or promise.unjudged:
        repeated = result.inputs is not None and result.inputs.repeated
        return _promise(promise, "distinct input" if repeated else "input") + _estimate(promise)
    # What was seen was seen on real inputs.
    if result.inputs is not None and result.inputs.synthetic:
        return ""
    if promise.calibrating:
        return _calibrated(promise, promise.calibrating) + _estimate(promise)
    alike = promise.alike
    if alike is None:
        return ""
    samples = counted(promise.took_part, "sample")
    return (
        f"{samples} promise{'s' * (promise.took_part == 1)} nothing (--holdout N judges others); "
        f"on {NETWORKS} other networks {_seen(alike.mean)} of fresh inputs failed, "
        f"up to {_seen(alike.worst)}{_estimate(promise)}{_waiting(result, promise)}"
    )


def _promise(promise: Unseen, what: str) -> str:
    sentence = f"{promise.failed} of {counted(promise.judged, what)} that took no part are over"
    if before := promise.joined + promise.passed_later:
        sentence += f", and {before} {'was' if before == 1 else 'were'} with an earlier answer"
    sentence += (
        f"; at most {_percent(promise.share_at_most)} of such inputs, "
        f"with {promise.confidence:.0%} confidence"
    )
    if promise.unjudged:
        sentence += f"; {promise.unjudged} have no FP32 outputs to judge by"
    return sentence


def _waiting(result: Result, promise: Unseen) -> str:
    """Say how many samples have not judged an answer, as after a budget that ended early."""
    inputs = result.inputs
    others = (inputs.distinct or inputs.samples) - promise.took_part if inputs else 0
    return f"; the other {others} have not judged this answer" if others > 0 else ""


def _calibrated(promise: Unseen, calibrating: Calibrating) -> str:
    """Say what all samples took part in, and how those did that chose no layer."""
    samples = f"all {promise.took_part} samples" if promise.took_part > 1 else "the one sample"
    rest = (
        f"; {calibrating.failed} of {calibrating.judged} that chose no layer are over"
        if calibrating.judged
        else ""
    )
    return f"{samples} calibrated, which promises nothing (--holdout N does){rest}"


def _estimate(promise: Unseen) -> str:
    """Say what the spread of errors suggests, which proves nothing."""
    estimate = promise.estimate
    if estimate is None or promise.share_at_most <= estimate.risk:
        return ""
    if estimate.spread is None:
        why = f", as {' and '.join(estimate.selecting)} selects" if estimate.selecting else ""
        return f"; no estimate for {_percent(estimate.risk)}: errors are of several kinds{why}"
    if estimate.share_under is None:
        return f"; their spread does not suggest {_percent(estimate.risk)} or less"
    proof = f"{estimate.provable_by} samples that pass would prove {_percent(estimate.risk)}"
    return f"; their spread suggests under {_percent(estimate.share_under)}; {proof}"


def _seen(share: float) -> str:
    return f"{100 * share:.0f}%" if share >= 0.02 else _percent(share)


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.995 else "100%"


def made_up(inputs: Inputs | None) -> str:
    """Say that the samples were made up; "" where they were given, or nothing tells."""
    if inputs is None or not inputs.synthetic:
        return ""
    count = inputs.samples
    return (
        f"made up, {counted(count, 'sample')}: real ones may reach ranges that these do "
        "not, and layers that overflow there are missed; give --inputs"
    )


def overlooked(result: Result) -> str:
    """Say by which outputs no plan can fail; "" for none."""
    if not result.overlooked:
        return ""
    names = first_of([printable(name) for name in result.overlooked], MOST_NAMED)
    verb = "is" if len(result.overlooked) == 1 else "are"
    limit = result.tolerance
    share = limit if isinstance(limit, float) and 0 < limit < 1 else DEFAULT_TOLERANCE
    return (
        f"{names} {verb} smaller than the tolerance, zeros would pass; give inputs that reach "
        f"larger values, or judge relatively: {snr_of(share)}"
    )


def predicted_alone(result: Result) -> str:
    """Say that nothing but the emulator has judged an answer; "" where an engine has."""
    if not (result.emulated and result.answered):
        return ""
    return "by the emulator, on this machine: no engine has run this plan"


def in_range(input_range: InputRange, low: str) -> str:
    """Say what an operator makes of an input's size, and what the answer came to at its ends."""
    name = printable(input_range.input)
    least, most = input_range.samples
    operators = " and ".join(dict.fromkeys(input_range.operators))
    first = f" ({printable(input_range.layers[0])})" if len(input_range.layers) == 1 else ""
    verb = "depend" if len({*input_range.operators}) > 1 else "depends"
    who = f"{operators}{first} {verb} on the size of {name}" if operators else name
    sentence = (
        f"{who}: your samples have {least:g} to {most:g}, where {low.upper()} has steps of "
        f"{input_range.step:.2g}"
    )
    if input_range.range is None:
        return f"{sentence}; --range {name}=LOW:HIGH tries the ends of its range"
    ends = f"{input_range.range[0]:g} to {input_range.range[1]:g}"
    sentence += f", and of {input_range.step_at_ends or 0.0:.2g} in {ends}"
    if input_range.passed is None:
        return f"{sentence}; not tried"
    figure = "" if input_range.error is None else f", error {input_range.error:.3g}"
    if input_range.passed:
        return f"{sentence}; holds on {input_range.variants} made-up variants at its ends{figure}"
    return (
        f"{sentence}; FAILS on {input_range.failed} of {input_range.variants} made-up variants "
        f"at its ends{figure}: "
        "give samples of the whole range"
    )


def names_of(target: TargetChoice) -> str:
    """Return what a target is called; of several, all of them."""
    return _names([name for name in TARGETS if target in (name, "all")])


def foreign_to(result: Result) -> str:
    """Say that a target of the run does not know operators of the model; "" where it does."""
    lacking = [name for name in result.unknown_to if result.target in (name, "all")]
    if not lacking:
        return ""
    knowing = [name for name in TARGETS if name not in result.unknown_to]
    other = f"--target {knowing[0]} judges for one that does" if knowing else "replace them first"
    return f"{_names(lacking)} cannot run operators of this model; {other}"


def predicted(result: Result) -> str:
    """Return what the answer is predicted for, and on which other targets it passes, too.

    What `fails_elsewhere` says is left out. "" where an engine has judged, and of runs that do not
    tell.
    """
    if result.target is None:
        return ""
    parts = [names_of(result.target)]
    for outcome in result.other_targets:
        names = _names(outcome.targets)
        if outcome.passed is None and not outcome.lack_kernel:
            parts.append(f"not judged on {names}: {printable(outcome.message)}")
        elif outcome.passed:
            error = "" if outcome.error is None else f": error {outcome.error:.3g}"
            parts.append(f"passes on {names}, too{error}")
    return "; ".join(parts)


def fails_elsewhere(result: Result) -> str:
    """Say on which other targets the answer fails, or does not run low, and why; "" for none."""
    failing = [
        outcome
        for outcome in result.other_targets
        if outcome.passed is False or outcome.lack_kernel
    ]
    parts = []
    for outcome in failing:
        if outcome.lack_kernel:
            layers = counted(outcome.lack_kernel, "low layer")
            why = printable(outcome.message)
            parts.append(f"{_names(outcome.targets)} cannot run {layers} low ({why})")
            continue
        error = "" if outcome.error is None else f": error {outcome.error:.3g}"
        parts.append(f"FAILS on {_names(outcome.targets)}{error}, {_why(result, outcome)}")
    if failing:
        parts.append(f"try --target {failing[0].targets[0]} or all")
    return "; ".join(parts)


def _names(targets: Sequence[TargetName]) -> str:
    *first, last = (LABELS[target] for target in targets)
    return f"{', '.join(first)} and {last}" if first else last


def _why(result: Result, on: OnTargets) -> str:
    """Say what the targets store inside operators, where the run took FP32."""
    if not on.stored:
        return "where everything inside operators is FP32"
    half = next(
        (precision for precision in (result.low, result.high) if precision in HALF_NAMES),
        "16 bits",
    )
    stored = [f"{STORED[entry.inside]} {entry.layers} {entry.op_type}" for entry in on.stored]
    return f"which stores {', '.join(stored)} in {half.upper()}"


def deployed(result: Result) -> Iterator[Row]:
    """Yield what the last check of the exported files found, where it does not refute them."""
    recheck = result.rechecked
    if recheck is None:
        return
    if recheck.outcome == "not_judged":
        # A runtime that the files end may be the one to deploy on.
        yield Row("files", _outcome(recheck), NEWS if recheck.crash else DETAIL)
    elif not recheck.refutes:
        yield Row("deployed", _outcome(recheck), EVIDENCE)


def must_not_be_used(result: Result) -> str:
    """Say why the exported model is none to deploy, "" where nothing speaks against it."""
    recheck = result.refuted
    return "" if recheck is None else f"Do not use {MIXED_MODEL}: {_outcome(recheck)}"


def _outcome(recheck: Recheck) -> str:
    error = "" if recheck.error is None else f": error {recheck.error:.4g}"
    match recheck.outcome:
        case "pass":
            return f"{RUN_SCRIPT} passes in a fresh process{error}"
        case "fail":
            return f"{RUN_SCRIPT} FAILS in a fresh process{error}; do not rely on this answer"
        case "not_judged" | "broken" | "differs":
            return printable(recheck.message)


def by_defaults(defaults: ByDefaults, result: Result) -> str:
    """Say whether ONNX Runtime's own options keep the answer, and which of ours matters."""
    error = "" if defaults.error is None else f": error {defaults.error:.4g}"
    if defaults.outcome == "pass":
        return f"ONNX Runtime's own options pass, too{error}"
    cure = f"; set {' and '.join(map(printable, defaults.options))}" if defaults.options else ""
    tf32 = any(option.startswith("use_tf32=") for option in defaults.options)
    gains = under_tf32(causes_in_files(result)) if tf32 else ""
    crash = result.rechecked.crash if result.rechecked else None
    if defaults.outcome == "broken" and crash is not None:
        return f"with ONNX Runtime's own options its process {printable(crash.ended)}{cure}"
    return f"ONNX Runtime's own options FAIL{error}{cure}{gains}"


def causes_in_files(result: Result) -> list[Cause]:
    """Return the causes of the layers that the files keep, too, as far as they are known."""
    kept = {*kept_in_files(result)[1]}
    return [diagnosis.cause for diagnosis in result.diagnosis if diagnosis.layer in kept]


def kept_for_rounding(causes: Iterable[Cause]) -> int:
    """Return of how many layers TF32 takes what they are kept for."""
    return sum(cause.digits for cause in causes)


def under_tf32(causes: Iterable[Cause]) -> str:
    """Say what TF32 makes of layers kept for their rounding, "" where there are none."""
    rounded = kept_for_rounding(causes)
    if not rounded:
        return ""
    layers = "the layer kept for rounding gains"
    if rounded > 1:
        layers = f"the {rounded} layers kept for rounding gain"
    return f"; under TF32 {layers} nothing"
