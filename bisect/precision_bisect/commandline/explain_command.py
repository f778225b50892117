"""`precision-bisect explain`: why layers need the precision, without a search."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from precision_bisect.commandline.arguments.parser import NEAR
from precision_bisect.errors import ModelError, UsageError, counted
from precision_bisect.explaining.diagnosis.diagnose import diagnose
from precision_bisect.explaining.diagnosis.findings import Findings, read_diagnosis
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.typed.pinning import pin_formless
from precision_bisect.layer_table import modules_around
from precision_bisect.machine.workdir import workdir
from precision_bisect.options import Options
from precision_bisect.pipeline.evaluators import reopened
from precision_bisect.pipeline.explanation import question, with_advice, worst_layers
from precision_bisect.pipeline.prepare import Prepared, prepare
from precision_bisect.runs.monitoring.events import Observer, Warned
from precision_bisect.runs.results.model_layers import read_modules
from precision_bisect.search.budget import Budget
from precision_bisect.search.driver import Driver


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
        named: list[str] = []

        def check(model: Model) -> None:
            table = pin_formless(model, options.pair).table
            named.extend(_named(layers, {layer.name: layer.module for layer in table.candidates}))

        prepared = prepare(options, observer, work, check)
        if low := [
            name for name in prepared.case.model.table.names if name in prepared.case.model.in_low
        ]:
            of = counted(len(prepared.case.model.table.names), "layer")
            message = (
                f"explained in its FP32 form: the file computes {len(low)} of {of} in 16 bits"
            )
            observer(Warned(message=message))
        try:
            ledger = work / "explained.sqlite"
            with reopened(prepared, ledger, Budget(), observer) as driver:
                errors = {} if named else dict(driver.run(worst_layers(prepared, worst)))
                prepared.rest()
                return _explained(prepared, driver, named or list(errors), errors)
        except RuntimeError as error:
            raise ModelError(
                f"ONNX Runtime cannot run {options.model}: {error}", "check the inputs"
            ) from error


def _explained(
    prepared: Prepared, driver: Driver, layers: Sequence[str], errors: Mapping[str, float]
) -> Findings:
    findings, watched = diagnose(question(prepared, layers))
    advised = driver.run(with_advice(prepared, driver, findings, watched))
    with_errors = [
        replace(finding, figures={**finding.figures, "alone_error": errors.get(finding.layer)})
        for finding in advised.layers
    ]
    order = {layer: i for i, layer in enumerate(layers)}
    return replace(advised, layers=sorted(with_errors, key=lambda finding: order[finding.layer]))


def _of_run(folder: Path, layers: Sequence[str]) -> Findings:
    findings = read_diagnosis(folder)
    if not layers:
        return findings
    modules = read_modules(folder) or {}
    named = _named(
        layers, {finding.layer: modules.get(finding.layer, "") for finding in findings.layers}
    )
    return replace(
        findings, layers=[finding for finding in findings.layers if finding.layer in named]
    )


def _named(names: Sequence[str], modules: Mapping[str, str]) -> list[str]:
    """Return the layers of these names, and those in modules of these names.

    `modules` are the layers with their modules. Raises UsageError for what is neither.
    """
    layers: list[str] = []
    for wanted in names:
        inside = [name for name, module in modules.items() if wanted in modules_around(module)]
        if wanted in modules or inside:
            layers += [wanted] if wanted in modules else inside
            continue
        near = _meant(wanted, list(modules))
        raise UsageError(
            f"{wanted!r} is no layer or module to explain",
            f"{f'did you mean {near[0]!r}? ' if near else ''}`precision-bisect layers` lists them",
        )
    return list(dict.fromkeys(layers))


def _meant(layer: str, names: Sequence[str]) -> Sequence[str]:
    """Return layers that a name may mean: by its end, by a part of it, or by likeness to those."""
    by_end = [name for name in names if name.endswith(layer)]
    by_part = [name for name in names if layer in name]
    parts = 1 + layer.count("/")
    ends = {"/".join(name.split("/")[-parts:]): name for name in names} | {n: n for n in names}
    near = difflib.get_close_matches(layer, ends, n=1, cutoff=NEAR)
    return by_end or by_part or [ends[end] for end in near]
