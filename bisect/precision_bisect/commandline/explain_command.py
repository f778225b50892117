"""`precision-bisect explain`: why layers need the precision, without a search."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from precision_bisect.commandline.arguments.usage_hints import NEAR
from precision_bisect.errors import ModelError, UsageError
from precision_bisect.explaining.diagnosis.diagnose import Question, diagnose
from precision_bisect.explaining.diagnosis.findings import Findings, read_diagnosis
from precision_bisect.graphs.typed.pinning import pin_formless
from precision_bisect.machine.workdir import workdir
from precision_bisect.options import Options
from precision_bisect.pipeline.explanation import squares, with_advice
from precision_bisect.pipeline.prepare import Prepared, prepare
from precision_bisect.pipeline.ranking import worst_layers
from precision_bisect.runs.monitoring.events import Observer


def explain(options: Options, layers: Sequence[str], worst: int, observer: Observer) -> Findings:
    """Return what `diagnosis.json` would hold for the named layers, or for the `worst` ones.

    Where the model is the folder of a run, that run's diagnosis is returned. Raises a
    PrecisionBisectError for bad input.
    """
    if worst < 1:
        raise UsageError(f"--worst {worst} is below 1", "give 1 or more")
    if options.model.is_dir():
        return _of_run(options.model, layers)
    with workdir() as work:
        # Before samples are read: a name needs the model alone.
        prepared = prepare(
            options,
            observer,
            work,
            lambda model: _check_names(layers, pin_formless(model, options.pair).table.names),
        )
        try:
            errors = {} if layers else dict(worst_layers(prepared, worst))
            prepared.rest()
            return _explained(prepared, list(layers or errors), errors)
        except RuntimeError as error:
            raise ModelError(
                f"ONNX Runtime cannot run {options.model}: {error}", "check the inputs"
            ) from error


def _explained(prepared: Prepared, layers: Sequence[str], errors: Mapping[str, float]) -> Findings:
    question = Question(
        model=prepared.model,
        pair=prepared.pair,
        kept=(),
        near=layers,
        tensors=squares(prepared.model),
        samples=prepared.samples,
        threads=prepared.options.threads,
        scales=prepared.scales,
        targets=prepared.options.targets,
    )
    findings, watched = diagnose(question)
    advised = with_advice(prepared, findings, watched)
    told = [
        replace(each, figures={**each.figures, "alone_error": errors.get(each.layer)})
        for each in advised.layers
    ]
    order = {layer: i for i, layer in enumerate(layers)}
    return replace(advised, layers=sorted(told, key=lambda each: order[each.layer]))


def _of_run(folder: Path, layers: Sequence[str]) -> Findings:
    found = read_diagnosis(folder)
    _check_names(layers, [each.layer for each in found.layers])
    if not layers:
        return found
    return replace(found, layers=[each for each in found.layers if each.layer in layers])


def _check_names(layers: Sequence[str], known: Sequence[str]) -> None:
    for layer in layers:
        if layer not in known:
            meant = _meant(layer, known)
            raise UsageError(
                f"{layer!r} is no layer to explain",
                f"{f'did you mean {meant[0]!r}? ' if meant else ''}`precision-bisect layers` "
                "lists them",
            )


def _meant(layer: str, known: Sequence[str]) -> Sequence[str]:
    """Return layers that a name may mean: by its end, by a part of it, or by likeness to those."""
    by_end = [name for name in known if name.endswith(layer)]
    by_part = [name for name in known if layer in name]
    parts = 1 + layer.count("/")
    ends = {"/".join(name.split("/")[-parts:]): name for name in known} | {n: n for n in known}
    near = difflib.get_close_matches(layer, ends, n=1, cutoff=NEAR)
    return by_end or by_part or [ends[each] for each in near]
