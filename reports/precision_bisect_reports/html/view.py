"""A run folder as what the page draws, and nothing else decides: `plain_json` writes it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from precision_bisect.explaining.diagnosis.findings import Finding, Findings, Histogram, Hurt
from precision_bisect.layer_table import SETTLED, Exclusion, scope_of
from precision_bisect.runs import plain_json
from precision_bisect.runs.results.curve_of_result import CurvePoint
from precision_bisect.runs.results.model_layers import ModelLayers, Row
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.speed_report import FrontPoint
from precision_bisect.runs.results.verification import Verification
from precision_bisect.runs.typed_json import foreign_file
from precision_bisect_reports.culprit_groups import groups_of
from precision_bisect_reports.curve import curve_words
from precision_bisect_reports.error_by_time import error_by_time
from precision_bisect_reports.html.answer import answer_section
from precision_bisect_reports.html.source import (
    Source,
    best,
    candidates_of,
    coded,
    columns,
    figure,
    sensitivities,
)
from precision_bisect_reports.speed import cost, mark_in_charts

RUNS_LOW, RUNS_HIGH, FOLLOWER, FIXED, OTHER, OPEN = range(6)
"""What becomes of a node: decided low or kept; not decided on; or not decided yet."""

_STAYS = (
    *(*SETTLED, Exclusion.CONTROL_FLOW, Exclusion.CUSTOM, Exclusion.UNTYPED),
    *(Exclusion.DOUBLE, Exclusion.RANDOM),
)


class Network:
    """The rows of `layers.json`; of the kept layers alone where a run has written none."""

    def __init__(self, layers: ModelLayers | None, result: Result | None) -> None:
        self.complete = layers is not None
        kept = result.kept if result else ()
        self.rows: Sequence[Row] = (
            layers.layers
            if layers is not None
            else [_bare(name, place) for place, name in enumerate(kept)]
        )
        self.index = {row.name: place for place, row in enumerate(self.rows)}
        self.candidates = [
            place for place, row in enumerate(self.rows) if row.candidate is not None
        ]

    def columns(
        self,
        precisions: Mapping[str, str] | None,
        pinned: Mapping[str, str],
        low: str,
        asked_types: Mapping[str, str],
    ) -> dict[str, Any]:
        """Return one list per field.

        `precisions` are those of the kept layers by name, None where nothing is decided; `pinned`
        says why others stay above the type `low`; `asked_types` has those by order.
        """
        ordered = {name: RUNS_LOW if kind == low else FIXED for name, kind in asked_types.items()}
        states = [ordered.get(row.name, _state(row, precisions, pinned)) for row in self.rows]
        return {
            "complete": self.complete,
            "name": [row.name for row in self.rows],
            "op": coded([row.op for row in self.rows]),
            "module": coded([row.module for row in self.rows]),
            "state": states,
            "precision": [
                _precision(row, state, precisions or {}, low)
                for row, state in zip(self.rows, states, strict=True)
            ],
            "reason": coded(
                [
                    pinned.get(row.name, ": ".join(filter(None, (row.exclusion, row.detail))))
                    for row in self.rows
                ]
            ),
            "follows": [row.follows for row in self.rows],
            "inputs": [row.inputs for row in self.rows],
        }


def _bare(name: str, place: int) -> Row:
    """Return the row of a layer of which only the name is known."""
    return Row(
        name=name,
        op="",
        module=scope_of(name),
        candidate=place,
        exclusion=None,
        follows=None,
        inputs=(),
    )


def _state(row: Row, precisions: Mapping[str, str] | None, pinned: Mapping[str, str]) -> int:
    if row.candidate is None:
        if row.exclusion is Exclusion.FOLLOWER:
            return FOLLOWER
        return FIXED if row.exclusion in _STAYS else OTHER
    if precisions is None:
        return OPEN
    if row.name in precisions:
        return RUNS_HIGH
    return FIXED if row.name in pinned else RUNS_LOW


def _precision(row: Row, state: int, precisions: Mapping[str, str], low: str) -> str | None:
    if state == RUNS_HIGH:
        return precisions[row.name]
    return low if state == RUNS_LOW else None


REPORT_SCHEMA = 1
_PARTS = ("inputs", "outputs", "weights")


def view_of(source: Source, folder: Path) -> dict[str, Any]:
    """Return everything that the report shows. Raises RunFolderError for what is not ours."""
    try:
        return _view(source)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise foreign_file(folder) from error


def _view(source: Source) -> dict[str, Any]:
    result, header = source.result, source.searches[0].recorded.header.fingerprint
    network = Network(source.layers, result)
    pinned = {pin.layer: pin.reason for pin in result.pinned} if result else {}
    asked_types = {order.layer: order.precision for order in result.asked} if result else {}
    low = result.low if result else str(header["low"])
    model = Path(source.status.run.model).name if source.status else "model"
    return {
        "schema": REPORT_SCHEMA,
        "model": source.layers.model if source.layers else model,
        "low": low,
        "answer": answer_section(source),
        "layers": network.columns(_precisions(source, network), pinned, low, asked_types),
        "kept": _kept(result, source.looked_into) if result else [],
        "sensitivity": _sensitivity(source, network),
        "searches": [
            {"title": search.title, "trials": columns(search.recorded.trials)}
            for search in source.searches
        ],
        "front": [_without_layers(point) for point in result.front] if result else [],
        "curve": _curve(result),
        "groups": _groups(result) if result else [],
        "by_modules": result.by_modules if result else None,
        "islands": _islands(result),
        "confirm": _confirm(result),
        **_diagnosed(source.diagnosis, network.index),
        "exports": dict(source.exports),
        "fingerprint": (result and result.fingerprint) or header,
    }


def _precisions(source: Source, network: Network) -> Mapping[str, str] | None:
    """Return the types of the kept layers by name; None where there is no answer."""
    if source.result and source.result.rungs:
        return source.result.precisions
    recorded = source.searches[0].recorded
    if source.result or source.searches[0].title or not _same(source, network):
        return None
    incumbent = best(recorded)
    if incumbent is None:
        return None
    names = [network.rows[place].name for place in network.candidates]
    return {
        names[index]: str(recorded.header.fingerprint["high"]) for index in incumbent[0].indices
    }


def _same(source: Source, network: Network) -> bool:
    """Whether the first search decides on exactly the candidates that the layer list has."""
    recorded = source.searches[0].recorded
    return network.complete and candidates_of(recorded) == len(network.candidates)


def _sensitivity(source: Source, network: Network) -> dict[str, Any]:
    """Return by layer the error of running it low, and how many ran low with it."""
    if not _same(source, network):
        return {"low": "", "layer": [], "error": [], "together": []}
    measurements = sorted(sensitivities(source.searches[0].recorded).items())
    return {
        "low": str(source.searches[0].recorded.header.fingerprint["low"]),
        "layer": [network.candidates[index] for index, _ in measurements],
        "error": [figure(error) for _, (error, _) in measurements],
        "together": [together for _, (_, together) in measurements],
    }


def _kept(result: Result, verified: Verification | None) -> list[dict[str, Any]]:
    """Return what is known of each kept layer: certificate, cause, whether the engine obeys."""
    needs = {need.layer: need for need in result.certificate.evidence}
    causes = result.causes
    looked = verified.layers if verified and verified.layers else result.honoured_layers
    honours = {entry.layer: entry for entry in looked}
    costs = (
        {layer_cost.layer: layer_cost for layer_cost in result.costs.layers}
        if result.costs
        else {}
    )
    rows = []
    for name in result.kept:
        cause, honour, cost = causes.get(name), honours.get(name), costs.get(name)
        rows.append(
            {
                "layer": name,
                "certificate": needs.get(name),
                "cause": cause and cause.cause,
                "evidence": cause and cause.evidence,
                "honoured": honour and honour.honoured,
                "seen": honour and honour.evidence,
                "ms": cost and cost.ms,
                "low_ms": cost and cost.low_ms,
            }
        )
    return rows


def _groups(result: Result) -> list[dict[str, Any]]:
    """Return the patterns of the kept layers, those that hurt most first."""
    return [
        {
            **plain_json.plain(group),
            "without": group.without and [figure(error) for error in group.without],
            "layers": len(group.layers),
        }
        for group in groups_of(result, result.kept)
    ]


def _islands(result: Result | None) -> dict[str, Any]:
    """Return what the islands of kept layers cost, the dearest first, and what they say in words.

    Where nothing was profiled the words say why; there are none where no engine judged.
    """
    costs = result.costs if result else None
    if result is None or costs is None:
        return {"words": "", "rows": []}
    if costs.left_out:
        return {"words": f"What they cost was not profiled: {costs.left_out}", "rows": []}
    rows = [
        {
            "name": island.name(result.module_of),
            "ms": island.ms,
            "casts_ms": island.casts_ms,
            "saves_ms": island.saves_ms,
        }
        for island in costs.islands
    ]
    return {"words": cost(result), "rows": rows}


def _confirm(result: Result | None) -> str:
    """Return what judges the answer with TensorRT, "" where nothing does or needs to."""
    judged = result and result.emulated and not result.refuted
    deployment = result.deployment if result and judged else None
    return (deployment and deployment.polygraphy) or ""


def _curve(result: Result | None) -> dict[str, Any]:
    """Return the points of the curve and the culprits, with what they say in words."""
    points = result.curve if result else ()
    return {
        "words": curve_words(result) if result and points else "",
        "points": [_without_layers(point) for point in points],
        "culprits": result.culprits if result else [],
        "deploy": _deployed(result) if result and points else None,
        "times": error_by_time(result) if result else None,
    }


def _deployed(result: Result) -> dict[str, Any] | None:
    """Return where the plan to deploy stands beside the curve; None where it is the answer."""
    plan = result.deploy
    if plan is None or plan.error is None or result.deploys_fewest:
        return None
    name = mark_in_charts(result)
    return {"name": name, "kept_count": len(plan.kept), "error": figure(plan.error)}


def _without_layers(point: CurvePoint | FrontPoint) -> dict[str, Any]:
    """Return a point without the names of its layers."""
    fields: dict[str, Any] = plain_json.plain(point)
    del fields["kept"]
    return fields


def _diagnosed(findings: Findings | None, index: Mapping[str, int]) -> dict[str, Any]:
    """Return what `diagnosis.json` says, which is optional: by layer, `spread` and `advice`."""
    if findings is None:
        return {"diagnosis": [], "spread": [], "advice": []}
    return {
        "diagnosis": [
            _finding(finding, index[finding.layer])
            for finding in findings.layers
            if finding.layer in index
        ],
        "spread": findings.spread,
        "advice": findings.advice,
    }


def _finding(finding: Finding, layer: int) -> dict[str, Any]:
    return {
        **plain_json.plain(finding),
        "layer": layer,
        "figures": {
            name: value
            for name, value in finding.figures.items()
            if isinstance(value, int | float | str)
        },
        "histogram": finding.histogram and _histogram(finding.histogram),
        "hurts": finding.hurts and _hurts(finding.hurts),
    }


def _hurts(hurt: Hurt) -> dict[str, Any]:
    """Return the output that a layer hurts most, by how much, and the layers on the way."""
    complete = len(hurt.errors) == len(hurt.path)
    return {**plain_json.plain(hurt), "errors": hurt.errors if complete else []}


def _histogram(histogram: Histogram) -> dict[str, Any] | None:
    """Return counts by power of two, the lowest exponent first; None where nothing was counted."""
    counts = {
        part: histogram.counts[part] for part in _PARTS if any(histogram.counts.get(part, ()))
    }
    if not counts:
        return None
    return {
        "lowest_exponent": histogram.lowest_exponent,
        "scaled": histogram.scaled,
        "counts": counts,
    }
