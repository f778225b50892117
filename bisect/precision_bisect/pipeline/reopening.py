"""A finished run as it was: its model, its plan, and its options with what flags change of them.

What it is read from is untrusted. Files with code, and how a machine is reached, come from flags
alone.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precision_bisect.errors import PluginError, RunFolderError, UsageError, printable, shortened
from precision_bisect.exports.finished import Finished, read_finished
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.ort import use_custom_ops
from precision_bisect.options import Options
from precision_bisect.plugins import installed_with
from precision_bisect.runs.ledger.ledger_reader import ledgers, read_ledger
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.run_status import told_of
from precision_bisect.runs.results.saved import last_run, quoted
from precision_bisect.runs.runfolder import LEDGER
from precision_bisect.runs.saved_options import options_from_json
from precision_bisect.runs.typed_json import typed
from precision_bisect.settings.engine_settings import NOT_TOLD, SHAPES, EngineSettings
from precision_bisect.settings.only_by_flag import ONLY_BY_FLAG, reaches_out
from precision_bisect.settings.reading import CONFIG_SCRIPT, PLUGINS, script_and_function


@dataclass(frozen=True, slots=True, kw_only=True)
class Reopened:
    """A finished run of a model.

    `unlike` names the settings of engines that flags ask for otherwise than the run had them.
    """

    model: Model
    finished: Finished
    options: Options
    unlike: Sequence[str]

    def check_code(self) -> None:
        """Raise UsageError where the run's builds had libraries or a script that are not given."""
        engine = self.options.engine
        here = {PLUGINS: {path.name for path in engine.plugins}, CONFIG_SCRIPT: set[str]()}
        if engine.config_script is not None:
            here[CONFIG_SCRIPT].add(script_and_function(engine.config_script)[0].name)
        for flag, names in self.finished.code.items():
            for name in names:
                if name not in here[flag]:
                    raise UsageError(f"the run built with {quoted(name)}", f"give it by {flag}")


def reopen(
    path: Path, plan: Path | None, flags: Mapping[str, Any], point: str | None = None
) -> Reopened:
    """Read a finished run; `path` is its model, its folder, or its `result.json`.

    `plan` is the folder or the result where `path` is the model, None for the model's last run.
    `flags` are settings of engines to be used instead of the run's, by name. Raises UsageError for
    an interface that the run has not judged, and a PrecisionBisectError for bad input.
    """
    use_custom_ops(EngineSettings(**flags).ort_custom_ops)
    model_path, result = model_and_result(path, plan)
    model = load_model(model_path)
    finished = read_finished(result, model, point)
    ran = finished.options.engine
    if (io_types := flags.get("io_types", "model")) not in ("model", ran.io_types):
        raise UsageError(
            f"--io-types {io_types} is not what the run has judged: its samples were not rounded",
            "search again with it",
        )
    changes = {name: value for name, value in flags.items() if name != "io_types"}
    # The three say one range: some of the run's beside some of the flags' might be out of order.
    if changes.keys() & set(SHAPES):
        changes = {**{name: {} for name in SHAPES}, **changes}
    asked = {name: value for name, value in changes.items() if name not in NOT_TOLD}
    return Reopened(
        model=model,
        finished=finished,
        options=replace(finished.options, engine=replace(ran, **changes)),
        unlike=sorted(name for name, value in asked.items() if value != getattr(ran, name)),
    )


def model_and_result(path: Path, plan: Path | None) -> tuple[Path, Path]:
    """Return the model and the result that the arguments name: either, or both.

    Raises UsageError, and RunFolderError for a model without a run.
    """
    if not (os.path.isdir(path) or path.suffix == ".json"):  # noqa: PTH112 - never raises
        return path, plan or last_run(path)
    if plan is not None:
        raise UsageError(f"{path} is a run, which has its plan", "leave --plan out, or name MODEL")
    run = path.parent if path.suffix == ".json" else path
    return model_of(run, f"name it beside the run: MODEL --plan {run}"), path


def model_of(run: Path, hint: str) -> Path:
    """Return the model of a run: where the run had it, else in its folder or beside that.

    Raises UsageError, with the hint, where it is in none of these places.
    """
    status = told_of(run)
    if status is None:
        raise UsageError(f"{run} does not say which model it is of", hint)
    return _model_at(run, Path(status.run.model), hint)


def _model_at(run: Path, model_path: Path, hint: str) -> Path:
    places = (
        model_path,
        run.parent / model_path,
        run / model_path.name,
        run.parent / model_path.name,
    )
    path = next((place for place in places if os.path.isfile(place)), None)  # noqa: PTH113
    if path is None:
        raise UsageError(f"the model of {run} is not at {model_path} any more", hint)
    return path


def options_to_go_on(run: Path, flags: Mapping[str, Any], engine: Mapping[str, Any]) -> Options:
    """Return the options with which the run in a folder was begun, with what flags change.

    `engine` are the flags that are settings of engines. Raises UsageError where the run had what
    only a flag may name and none does, and where its model is gone, and RunFolderError for a
    folder without a ledger of this version.
    """
    if "out" in flags:
        raise UsageError(f"a run goes on in its folder, {run}", "leave --out out")
    ledger = next(iter(ledgers(run)), run / LEDGER)
    header = read_ledger(ledger).header
    _refuse_missing(run, header.plugins)
    try:
        content = {**header.options}
        content["engine"] = {**typed(dict[str, Any], content.get("engine", {}))}
        for values, given in ((content, flags), (content["engine"], engine)):
            for name in ONLY_BY_FLAG.keys() & values.keys():
                if name in given:
                    del values[name]
                elif reaches_out(name, values[name]):
                    raise UsageError(
                        f"the run had {ONLY_BY_FLAG[name]} {shortened(str(values[name]))}",
                        "give it again: what a run folder names is not run",
                    )
        begun = options_from_json(content)
        model = _model_at(run, begun.model, f"name it: MODEL --resume --out {run}")
        changes: dict[str, Any] = {"model": model, "out": run, "resume": True, "overwrite": False}
        # What was drawn alone goes on to an answer, and what was spent is no limit any more.
        if begun.until == "curve":
            changes["until"] = "answer"
        if (status := told_of(run)) and status.status is Status.BUDGET_EXHAUSTED:
            changes |= {"max_trials": None, "max_time_s": None}
        return replace(begun, engine=replace(begun.engine, **engine), **{**changes, **flags})
    except ValueError as error:
        raise RunFolderError(
            f"{ledger} is damaged: options: {shortened(str(error))}",
            "name the model, or choose another --out",
        ) from error


def _refuse_missing(run: Path, plugins: Mapping[str, str]) -> None:
    """Raise PluginError for a plug-in of the run that is not installed, saying what brings it."""
    for plugin, distribution in plugins.items():
        if distribution and not installed_with(plugin):
            raise PluginError(
                printable(f"{run} used the {plugin} of {distribution}, which is not installed"),
                "install it",
            )
