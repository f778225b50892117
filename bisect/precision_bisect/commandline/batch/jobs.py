"""What a jobs file asks for: untrusted TOML, checked whole before the first job starts.

A job's keys are the flags of the main command without their dashes, and the main command's own
parser checks them, so a flag that is added there is a key here.
"""

import glob
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from precision_bisect.commandline.arguments.parser import Parser
from precision_bisect.commandline.arguments.run_flags import run_parser, to_options
from precision_bisect.commandline.arguments.toml_flags import (
    NO_CONFIG,
    flag_arguments,
    flag_keys,
    read_toml,
)
from precision_bisect.commandline.batch.batch_record import BATCH, JUNIT, SUMMARY, Job
from precision_bisect.errors import PrecisionBisectError, UsageError
from precision_bisect.execution.executor import executor_plugin
from precision_bisect.plugins import load_strategy
from precision_bisect.settings.check_words import read_check
from precision_bisect.settings.loop_options import script_of_loop
from precision_bisect.settings.sample_options import ENGINE_REFERENCE

# Flags that the batch gives itself, or that run no search.
_RESERVED = frozenset(
    {"out", "resume", "overwrite", "json", "version", "help", "help-all", "config"}
)
_TABLES = ("defaults", "job")


def read_jobs(path: Path, out: Path) -> list[Job]:
    """Return the jobs of a file; their run folders and logs lie in `out`.

    Raises UsageError, which names the job, for the first thing that cannot work.
    """
    tables = _tables(path)
    parser = run_parser()
    defaults = flag_keys("[defaults]", tables.get("defaults", {}))
    if "name" in defaults:
        raise UsageError("[defaults] sets name, which each job has for itself", "move it")
    jobs: dict[str, Job] = {}
    numbered_keys = (
        (number, keys)
        for number, table in enumerate(tables["job"], 1)
        for keys in _for_each_model(
            number, defaults | flag_keys(f"job {number}", table), path.parent
        )
    )
    for number, keys in numbered_keys:
        name = _name(number, keys)
        # Their folders would be one where a file system does not tell cases apart.
        if name.casefold() in jobs:
            raise UsageError(f"job {number} and another are both named {name}", "rename one")
        try:
            jobs[name.casefold()] = _job(parser, name, keys, path.parent, out.absolute())
        except PrecisionBisectError as error:
            raise UsageError(f"job {name}: {error.message}", error.hint) from error
    return list(jobs.values())


def _tables(path: Path) -> Mapping[str, Any]:
    tables = read_toml(
        path,
        "jobs file",
        f"one model alone is searched by `precision-bisect {shlex.quote(str(path))}`; "
        "`precision-bisect batch --help` shows a jobs file",
    )
    for key in tables:
        if key not in _TABLES:
            raise UsageError(
                f"{path} has an unknown {key!r}", "it holds [defaults] and one [[job]] per search"
            )
    jobs = tables.get("job")
    if not isinstance(jobs, list) or not jobs:
        raise UsageError(f"{path} has no jobs", "add a [[job]] with a model")
    return tables


def _for_each_model(number: int, keys: dict[str, Any], base: Path) -> Iterator[dict[str, Any]]:
    """Yield the keys once for each model, where a pattern or a folder stands for several."""
    model = keys.get("model")
    if not isinstance(model, str) or "\0" in model:
        yield keys
        return
    folder = os.path.isdir(base / model)  # noqa: PTH112
    pattern = str(Path(glob.escape(model)) / "*.onnx") if folder else model
    if pattern == model and (not glob.has_magic(model) or os.path.exists(base / model)):  # noqa: PTH110
        yield keys
        return
    models = sorted(glob.glob(pattern, root_dir=base))  # noqa: PTH207
    if not models or "name" in keys:
        wrong = "has a name, and a model that stands for several" if models else "has no model"
        raise UsageError(f"job {number} {wrong}: {pattern}", "each is named after its model")
    for file in models:
        yield {**keys, "model": file}


def _named(value: Any, name: str) -> Any:
    """Return what a key is given, in whose texts `{name}` is the name of the job."""
    if isinstance(value, list):
        return [_named(item, name) for item in value]
    return value.replace("{name}", name) if isinstance(value, str) else value


def _name(number: int, keys: dict[str, Any]) -> str:
    """Take the name out of the keys, or derive it from the model; it also names a folder."""
    name = keys.pop("name", None)
    model = keys.get("model")
    if not isinstance(model, str) or not model:
        where = f"job {number if name is None else name}"
        raise UsageError(f"{where} has no model", 'add model = "PATH"')
    if name is None:
        name = Path(model).stem
    if not isinstance(name, str) or not _names_a_folder(name):
        raise UsageError(
            f"job {number} cannot be named {name!r}",
            f"it names a folder, and is no {BATCH}, {SUMMARY}, {JUNIT}, rung-… or ….log",
        )
    return name


def _names_a_folder(name: str) -> bool:
    """Tell whether the name is one of a folder, everywhere, and of nothing that the batch has."""
    lower = name.casefold()
    own = lower.endswith(".log") or lower.startswith((BATCH, SUMMARY, JUNIT, "rung-"))
    harmless = name.isprintable() and not set(name) & set('/\\:*?"<>|~')
    return harmless and bool(name.strip(". ")) and not name.startswith(("-", ".")) and not own


def _job(parser: Parser, name: str, keys: dict[str, Any], base: Path, out: Path) -> Job:
    model = keys.pop("model")
    named = {key: _named(value, name) for key, value in keys.items()}
    for key in _RESERVED.intersection(named):
        raise UsageError(f"{key} is no key of a job", "the batch itself decides it")
    pairs = named.items()
    arguments = tuple(text for pair in pairs for text in flag_arguments(parser, *pair))
    options = to_options(parser.read([*arguments, "--", model]))
    load_strategy(options.strategy)
    executor_plugin(options)
    script = read_check(str(options.check)).script if options.check else None
    loop = script_of_loop(str(options.loop))[0] if options.loop else None
    reference = None if options.reference == ENGINE_REFERENCE else options.reference
    # A colon is of the words that name a raw file for each input, the rest of a pattern.
    inputs = None if set(":*?[").intersection(str(options.inputs)) else options.inputs
    for needed in (model, inputs, reference, script, loop):
        # A lookup that cannot fail: names are untrusted.
        if isinstance(needed, str | Path) and needed and not os.path.exists(base / needed):  # noqa: PTH110
            raise UsageError(f"no such file: {base / needed}", "paths start at the jobs file")
    file_stat = (base / model).stat()
    return Job(
        name=name,
        model=model,
        model_stamp=[file_stat.st_size, file_stat.st_mtime_ns],
        command=[
            "precision-bisect",
            "run",
            *arguments,
            f"--config={NO_CONFIG}",
            f"--out={out / name}",
            "--resume",
            "--",
            model,
        ],
        run_folder=str(out / name),
        log=str(out / f"{name}.log"),
    )
