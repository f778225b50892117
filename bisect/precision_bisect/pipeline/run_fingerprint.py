"""What a run's verdicts depend on: a run can be resumed only with the same.

The ledger has it as its header, and refuses a mismatch field by field.
"""

import hashlib
import platform
from collections.abc import Iterable
from dataclasses import fields
from importlib.metadata import version
from typing import Any

from precision_bisect.backends.backend_plugin import sample_shapes
from precision_bisect.graphs.load import Model
from precision_bisect.layer_table import SETTLED, Exclusion
from precision_bisect.machine.installed_code import code_digest
from precision_bisect.options import Options
from precision_bisect.plugins import (
    BACKENDS,
    COMPARATORS,
    EXECUTORS,
    STRATEGIES,
    called,
    installed_with,
    name_of,
)
from precision_bisect.protocols import Comparator, Described
from precision_bisect.runs import plain_json
from precision_bisect.runs.ledger.fingerprint import digest_samples
from precision_bisect.search.sample_sets import SampleSets
from precision_bisect.settings.engine_settings import NOT_TOLD, EngineSettings
from precision_bisect.settings.reading import digests, script_and_function
from precision_bisect.settings.sample_options import given_image_flags

# Of layers whose type the search or the user chooses.
_CHOSEN = (None, Exclusion.ASKED)


def fingerprint(
    options: Options, model: Model, sets: SampleSets, comparator: Comparator, backend: Described
) -> dict[str, Any]:
    """Return what the verdicts depend on; values are plain JSON."""
    forms = [f"{name}={form}" for name, form in model.table.asked.items()]
    # What flags settle is told apart, so that other flags do not look like another model.
    layers = [layer.name for layer in model.table.layers if layer.exclusion in _CHOSEN]
    return {
        "model": model.digest,
        "layers": hashed(layers),
        **({"asked": hashed(forms)} if forms else {}),
        "inputs": digest_samples(sets.feeds),
        "samples": len(sets.feeds),
        "shapes": {
            name: [list(shape) for shape in shapes]
            for name, shapes in sample_shapes(model, sets.taken).items()
        },
        "images": given_image_flags(options),
        "holdout": options.holdout,
        "copies": [options.copies, options.copies_failing],
        "low": options.low,
        "high": options.high,
        "fixed": _fixed(model),
        "calibration": options.calibration if options.low == "int8" else None,
        "backend": backend.name,
        "target": options.target if backend.emulated else None,
        "engine": {} if backend.emulated else _plain(options.engine),
        **({"tf32": "on"} if backend.emulated and options.engine.in_tf32 else {}),
        **({} if options.engine.io_types == "model" else {"io_types": options.engine.io_types}),
        "strategy": name_of(options.strategy),
        **({} if options.by == "layer" else {"by": options.by}),
        **({} if options.rank_by == "emulator" else {"rank_by": options.rank_by}),
        "seed": options.seed,
        "comparator": dict(comparator.settings()),
        "machine": platform.machine(),
        "code": code_digest(_plugins(options)),
        "versions": {
            "precision-bisect": version("precision-bisect"),
            "polygraphy": version("polygraphy"),
            "numpy": version("numpy"),
            **digests(options.engine.ort_custom_ops, "operators of"),
            **({} if backend.emulated else _of_builds(options.engine)),
            **backend.versions(),
        },
    }


def plugin_versions(options: Options) -> dict[str, str]:
    """Return what the plug-ins of a run are installed with, by kind and name."""
    used = (called(group, name) for group, name in sorted(_plugins(options)))
    return {plugin: installed_with(plugin) for plugin in used}


def _plugins(options: Options) -> frozenset[tuple[str, str]]:
    """Return what of the plug-ins decides verdicts, each with its group."""
    judges = {(COMPARATORS, name_of(options.metric))} if options.check is None else set()
    others = {(STRATEGIES, name_of(options.strategy)), (EXECUTORS, options.executor)}
    return frozenset({*judges, *others, (BACKENDS, options.backend)})


def _fixed(model: Model) -> str:
    """Return a hash of the types that layers are fixed to, as by earlier rungs; "" for none."""
    pinned = (layer for layer in model.table.layers if layer.exclusion in SETTLED)
    fixed = [f"{layer.name}={layer.fixed}" for layer in pinned if layer.fixed]
    return hashed(fixed) if fixed else ""


def hashed(names: Iterable[str]) -> str:
    """Return the SHA-256 of a list of names."""
    # A NUL cannot occur in a name, so no two lists of names join to the same text.
    return hashlib.sha256("\0".join(names).encode()).hexdigest()


def _of_builds(settings: EngineSettings) -> dict[str, str]:
    """Return hashes of the files that builds run."""
    hashes = digests(settings.plugins, "plugins of")
    if settings.config_script is not None:
        path, function = script_and_function(settings.config_script)
        hashes |= digests([path], f"{function}() of")
    return hashes


def _plain(settings: EngineSettings) -> dict[str, Any]:
    """Return the settings that decide verdicts, without files, as values of plain JSON."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return {key: plain_json.plain(values[key]) for key in values if key not in NOT_TOLD}
