"""Why each kept layer of a ladder can go no lower: for each rung what its last search found."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from precision_bisect.explaining.diagnosis.findings import Finding, Findings
from precision_bisect.layer_table import LayerName
from precision_bisect.pipeline.explanation import Answer, explained
from precision_bisect.pipeline.ladder.climbed import Climbed
from precision_bisect.runs.ledger.ledger_reader import read_ledger

_NOT_TRIED = "; it is {high} for another reason, and was not tried in {low}"


def explain_ladder(climbed: Climbed, *, late: bool) -> Findings:
    """Return the findings of all rungs, in network order: why a layer is kept comes first.

    A layer has one entry for each rung below its type on which it has a form. The one for the next
    lower type rests on trials, those further down on its values alone. A near miss of one rung may
    be kept by the next. Rungs without an answer are left out. If it is `late`, nothing is tried.
    """
    found = [each for rung in reversed(climbed.rungs) for each in _of_rung(climbed, rung, late)]
    order = {str(name): i for i, name in enumerate(climbed.composition.levels)}
    layers = [layer for each in found for layer in each.layers]
    return Findings(
        low=climbed.composition.ladder[0],
        layers=sorted(layers, key=lambda layer: (order[layer.layer], not layer.kept)),
        spread=[birth for each in found for birth in each.spread],
        advice=[advice for each in found for advice in each.advice],
    )


def nearest(findings: Findings) -> Mapping[str, Finding]:
    """Return for each kept layer the finding of its highest rung: why it goes no lower."""
    found: dict[str, Finding] = {}
    for each in findings.layers:
        if each.kept:
            found.setdefault(each.layer, each)
    return found


def _of_rung(climbed: Climbed, rung: int, late: bool) -> Iterator[Findings]:
    """Yield what the last search of a rung says of the layers that its answer keeps."""
    step = next((each for each in reversed(climbed.steps) if each.rung == rung), None)
    if step is None or not step.result.status.answers:
        return
    own = [name for name in climbed.chosen[rung + 1] if name in frozenset(step.kept)]
    above = list(_above(climbed, rung))
    if not own and not above:
        return
    answer = Answer(
        kept=[*own, *above],
        proof=step.result.certificate,
        trials=read_ledger(step.ledger).trials,
        error=step.result.error,
        late=late,
    )
    found = explained(step.prepared, answer).findings
    pair = climbed.composition.pair(rung)
    yield replace(
        found,
        layers=[_told(climbed, each, frozenset(above)) for each in found.layers],
        advice=[
            replace(each, evidence=f"{pair.low} against {pair.high}: {each.evidence}")
            for each in found.advice
        ],
    )


def _above(climbed: Climbed, rung: int) -> Iterator[LayerName]:
    """Yield the layers that higher rungs keep, and that have a form on this one."""
    for level in climbed.chosen:
        for name in climbed.chosen[level] if level > rung + 1 else ():
            floor = climbed.floors.get(name)
            # A layer without a form in the lower type has nothing to explain on this rung.
            if floor is None or floor.level <= rung:
                yield name


def _told(climbed: Climbed, finding: Finding, above: frozenset[LayerName]) -> Finding:
    """Return the finding; if a higher rung keeps the layer, the evidence says so."""
    if finding.layer not in above:
        return finding
    levels = climbed.composition.levels
    high = climbed.composition.ladder[levels[LayerName(finding.layer)]]
    words = _NOT_TRIED.format(high=high, low=finding.low)
    return replace(finding, high=high, evidence=f"{finding.evidence}{words}")
