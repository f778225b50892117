"""Options as JSON: whole in a ledger's header, and as far as a result tells of them.

A run folder may be somebody else's. What names code, another machine or a place to write to is
recorded for its owner, and is never taken from there: flags give it anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

from precision_bisect.errors import shortened
from precision_bisect.options import Options
from precision_bisect.runs import plain_json
from precision_bisect.runs.typed_json import typed
from precision_bisect.settings.check_words import read_check
from precision_bisect.settings.engine_settings import NOT_TOLD, EngineSettings, TypingName
from precision_bisect.settings.flags import kinds
from precision_bisect.settings.loop_options import script_of_loop
from precision_bisect.settings.reading import CONFIG_SCRIPT, PLUGINS, script_and_function

# The types of options that Python may also give as objects, which have only a name in JSON.
_BY_NAME: Mapping[str, Any] = {
    "inputs": Path | None,
    "metric": str,
    "check": str | None,
    "loop": str | None,
    "strategy": str,
    "start": str | None,
}
# Options that no result tells: files and machines of the user's own.
_OWN = (
    *("model", "inputs", "reference", "start", "out", "resume", "overwrite"),
    *("gpus", "executor", "executor_address", "optuna_storage"),
)


def options_to_json(options: Options) -> dict[str, Any]:
    """Return every option as plain JSON; of objects their names, of samples in memory nothing."""
    inputs = options.inputs if isinstance(options.inputs, Path) else None
    content: dict[str, Any] = plain_json.plain(replace(options.sent, inputs=inputs))
    return content


def options_from_json(content: object, **changes: Any) -> Options:
    """Return the options that `options_to_json` has written, but for the `changes`.

    Raises ValueError for unknown options and values of other types, and UsageError for values
    that cannot work, such as a library that is not there any more.
    """
    values = {**_values(Options, content), **changes}
    if "model" not in values:
        raise ValueError("it names no model")
    return Options(**values)


def told_options(options: Options) -> dict[str, Any]:
    """Return what a result tells of the options: no machine, and of files with code the names."""
    content = options_to_json(options)
    engine = options.engine
    told = {name: value for name, value in content["engine"].items() if name not in NOT_TOLD}
    # Paths are of this machine, and results are sent around.
    for name in ("plugins", "ort_custom_ops"):
        told[name] = [path.name for path in getattr(engine, name)]
    if engine.config_script is not None:
        path, function = script_and_function(engine.config_script)
        told["config_script"] = f"{path.name}:{function}"
    if isinstance(options.check, str):
        content["check"] = str(read_check(options.check))
    if isinstance(options.loop, str):
        script, function = script_of_loop(options.loop)
        content["loop"] = f"{Path(script).name}:{function}"
    return {name: content[name] for name in content if name not in _OWN} | {"engine": told}


def options_of_result(content: object, model: Path) -> Options:
    """Return the options that a result tells, without files that hold code.

    Raises ValueError and UsageError as `options_from_json` does.
    """
    told = typed(dict[str, Any], content)
    engine = typed(dict[str, Any], told.get("engine", {}))
    values = {name: value for name, value in told.items() if name not in _OWN}
    values["engine"] = {name: value for name, value in engine.items() if name not in NOT_TOLD}
    return options_from_json(values, model=model)


def code_of_builds(content: object) -> dict[str, Sequence[str]]:
    """Return by flag the names of the files with code that builds of a run had.

    Raises ValueError for what no result tells.
    """
    engine = typed(dict[str, Any], typed(dict[str, Any], content).get("engine", {}))
    scripts = [script] if (script := engine.get("config_script")) is not None else []
    return {
        PLUGINS: typed(list[str], engine.get("plugins", [])),
        CONFIG_SCRIPT: [script_and_function(text)[0].name for text in typed(list[str], scripts)],
    }


def time_batch_of(content: Mapping[str, Any]) -> object:
    """Return the batch that the options of a result time, None for the samples' own."""
    engine = content.get("engine")
    return engine.get("time_batch") if isinstance(engine, Mapping) else None


def _values(settings: type, content: object) -> dict[str, Any]:
    """Return the values of a dataclass by field. Raises ValueError, naming the field."""
    settings_by_name = {setting.name: setting for setting in fields(settings)}
    values: dict[str, Any] = {}
    for name, value in typed(dict[str, Any], content).items():
        if name not in settings_by_name:
            raise ValueError(f"there is no option {shortened(repr(name))}")
        setting = settings_by_name[name]
        kind = _BY_NAME.get(name, setting.type)
        try:
            if kind is EngineSettings:
                values[name] = EngineSettings(**_values(kind, value))
                continue
            # JSON has no figure without an end.
            endless = value == "inf" and float in kinds(setting)
            read = typed(kind, float(value) if endless else value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        values[name] = tuple(read) if isinstance(read, list) else read
    return values


def typing_of(fingerprint: Mapping[str, Any]) -> TypingName:
    """Return how a run's engines were typed, "auto" where none was built by TensorRT.

    Weakly typed, TensorRT takes FP32 for low layers where that is faster.
    """
    versions = fingerprint.get("versions")
    typing = versions.get("typing") if isinstance(versions, Mapping) else None
    return next((name for name in get_args(TypingName) if name == typing), "auto")
