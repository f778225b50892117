"""A finished run as it was: its model, its plan, and its options with what flags change of them.

What it is read from is untrusted. Files with code, and how a machine is reached, come from flags
alone.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precision_bisect.errors import UsageError
from precision_bisect.exports.finished import Finished, read_finished
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.ort import use_custom_ops
from precision_bisect.options import ANSWER, Options
from precision_bisect.runs.results.run_status import told_of
from precision_bisect.runs.results.saved import last_run, quoted
from precision_bisect.settings.engine_settings import NOT_TOLD, SHAPES, EngineSettings
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
    path: Path, plan: Path | None, flags: Mapping[str, Any], point: str = ANSWER
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
    model_path = Path(status.run.model)
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
