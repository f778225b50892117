"""A run folder as plain values, which the page draws and which nothing else decides."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precision_bisect.results.result import WITHOUT_IT
from precision_bisect.results.saved import unpacked
from precision_bisect.run_folder.json_values import Unfit
from precision_bisect_reports.culprit_groups import groups_of
from precision_bisect_reports.curve import words
from precision_bisect_reports.html.answer import answer
from precision_bisect_reports.html.compact import figure
from precision_bisect_reports.html.diagnosed import diagnosed
from precision_bisect_reports.html.network import Network
from precision_bisect_reports.html.source import Source, foreign
from precision_bisect_reports.html.trials import best, candidates_of, columns, sensitivities

SCHEMA = 1


def view_of(source: Source, folder: Path) -> dict[str, Any]:
    """Return everything that the report shows. Raises RunFolderError for what is not ours."""
    try:
        return _view(source)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, Unfit) as error:
        raise foreign(folder) from error


def _view(source: Source) -> dict[str, Any]:
    result, header = source.result, source.searches[0].recorded.header
    network = Network(source.layers, result)
    pinned = {entry["layer"]: entry["reason"] for entry in result.get("pinned", ())}
    low = str(result.get("low", header["low"]))
    return {
        "schema": SCHEMA,
        "model": source.layers.get("model") or _file_name(source.told),
        "low": low,
        "answer": answer(source),
        "layers": network.columns(_precisions(source, network), pinned, low),
        "kept": _kept(result, source.looked_into),
        "sensitivity": _sensitivity(source, network),
        "searches": [
            {"title": search.title, "trials": columns(search.recorded.trials)}
            for search in source.searches
        ],
        "front": [_point(point) for point in result.get("front", ())],
        "curve": _curve(result),
        "groups": _groups(result),
        "confirm": _confirm(result),
        **diagnosed(source, network.index),
        "exports": dict(source.exports),
        "fingerprint": result.get("fingerprint")
        or {key: value for key, value in header.items() if key != "schema"},
    }


def _file_name(told: Mapping[str, Any]) -> str:
    return Path(str(told.get("run", {}).get("model", "model"))).name


def _precisions(source: Source, network: Network) -> dict[str, str] | None:
    """Return the types of the kept layers by name; None where there is no answer."""
    if rungs := source.result.get("rungs"):
        return {name: rung["precision"] for rung in rungs for name in (rung["layers"] or ())}
    recorded = source.searches[0].recorded
    if source.result or source.searches[0].title or not _same(source, network):
        return None
    found = best(recorded)
    if found is None:
        return None
    names = [network.rows[place]["name"] for place in network.candidates]
    return {names[index]: str(recorded.header["high"]) for index in found[0].indices}


def _same(source: Source, network: Network) -> bool:
    """Whether the first search decides on exactly the candidates that the layer list has."""
    recorded = source.searches[0].recorded
    return network.complete and candidates_of(recorded) == len(network.candidates)


def _sensitivity(source: Source, network: Network) -> dict[str, Any]:
    """Return by layer the error of running it low, and how many ran low with it."""
    if not _same(source, network):
        return {"low": "", "layer": [], "error": [], "together": []}
    found = sorted(sensitivities(source.searches[0].recorded).items())
    return {
        "low": str(source.searches[0].recorded.header["low"]),
        "layer": [network.candidates[index] for index, _ in found],
        "error": [figure(error) for _, (error, _) in found],
        "together": [together for _, (_, together) in found],
    }


def _kept(result: Mapping[str, Any], verified: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what is known of each kept layer: certificate, cause, whether the engine obeys."""
    if not result:
        return []
    needs = {need["layer"]: need for need in result["certificate"]["evidence"]}
    causes = {each["layer"]: each for each in result["diagnosis"]}
    looked = verified.get("layers") or result["honoured_layers"]
    honours = {each["layer"]: each for each in looked}
    keys = ("needed", "how", "error", "more_kept", "group", "reason")
    rows = []
    for name in result["kept"]:
        need, cause, honour = needs.get(name), causes.get(name, {}), honours.get(name, {})
        evidence = cause.get("evidence")
        rows.append(
            {
                "layer": name,
                "certificate": need and {key: need[key] for key in keys},
                "cause": cause.get("cause"),
                "evidence": evidence and evidence.partition(WITHOUT_IT)[0],
                "honoured": honour.get("honoured"),
                "seen": honour.get("evidence"),
            }
        )
    return rows


def _groups(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the patterns of the kept layers, those that hurt most first."""
    if not result or not result["kept"]:
        return []
    return [
        {
            "title": each.title,
            "cause": each.cause,
            "without": each.without and [figure(error) for error in each.without],
            "places": list(each.places),
            "layers": len(each.layers),
        }
        for each in groups_of(unpacked(result), result["kept"])
    ]


def _confirm(result: Mapping[str, Any]) -> str:
    """Return what judges the answer with TensorRT, "" where nothing does or needs to."""
    deployment = result.get("deployment") or {}
    return str(deployment.get("polygraphy") or "") if result.get("emulated") else ""


def _curve(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the points of the curve and the culprits, with what they say in words."""
    points, culprits = result.get("curve", ()), result.get("culprits", ())
    figures = ("kept_count", "error_median", "error_max", "latency_ms", "point")
    blamed = ("layer", "error_without", "error_with", "cause")
    return {
        "words": words(unpacked(result)) if points else "",
        "points": [{key: point[key] for key in figures} for point in points],
        "culprits": [{key: each[key] for key in blamed} for each in culprits],
    }


def _point(point: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("kept_count", "passed", "error", "latency_ms", "spread_ms", "speedup", "cost")
    return {key: point[key] for key in keys}
