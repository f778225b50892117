"""Whatever there are several of, found by entry point: others' are the same as ours."""

import sys
from collections.abc import Callable
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, cast

from precision_bisect.errors import (
    RAISED_BY_OTHERS,
    PluginError,
    PrecisionBisectError,
    errors_of_others,
    in_words,
)
from precision_bisect.protocols import Strategy

STRATEGIES = "precision_bisect.strategies"
REPORTS = "precision_bisect.reports"
BACKENDS = "precision_bisect.backends"
EXPORTERS = "precision_bisect.exports"
COMPARATORS = "precision_bisect.comparators"
EXECUTORS = "precision_bisect.executors"
_KINDS = {
    STRATEGIES: "strategy",
    REPORTS: "report",
    BACKENDS: "backend",
    EXPORTERS: "export",
    COMPARATORS: "metric",
    EXECUTORS: "executor",
}
# What the protocols ask of what a plug-in makes.
_MEMBERS = {
    STRATEGIES: ("name", "assumption", "minimal", "largest", "search"),
    COMPARATORS: ("tolerance", "settings", "judge"),
}
_PROTOCOL = "precision_bisect.protocols says what it must have"


def installed(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name, sorted."""
    every = _every(tuple((place, _changed_ns(place)) for place in sys.path))
    return {entry.name: entry for entry in sorted(every.select(group=group))}


@lru_cache(maxsize=1)
def _every(places: tuple[tuple[str, int], ...]) -> Any:
    """Read them once: a run asks a dozen times, and all metadata are read for each answer.

    `places` is the path with the times of its folders, to notice what is installed meanwhile.
    Each run changes those of the current folder, so that no former answer is held.
    """
    del places
    # Of another type in Python 3.11 than later; both have `select`.
    return entry_points()


def called(group: str, name: str) -> str:
    """Return a plug-in's kind and name."""
    return f"{_KINDS[group]} {name}"


def installed_with(plugin: str) -> str:
    """Return the distribution that brings a plug-in, with its version, "" for none.

    A plug-in is called by its kind and name, as `called` says it.
    """
    kind, _, name = plugin.partition(" ")
    group = next((group for group, of in _KINDS.items() if of == kind), "")
    entry = installed(group).get(name)
    return f"{entry.dist.name} {entry.dist.version}" if entry and entry.dist else ""


def _changed_ns(place: str) -> int:
    try:
        return Path(place).stat().st_mtime_ns
    except OSError:
        return 0


def name_of(plugin: str | Callable[..., Any]) -> str:
    """Return a plug-in's name; of an object that Python gave instead, where it is defined."""
    if isinstance(plugin, str):
        return plugin
    defined: Any = plugin if hasattr(plugin, "__qualname__") else type(plugin)
    return f"{defined.__module__}.{defined.__qualname__}"


def load(group: str, name: str | Callable[..., Any]) -> Callable[..., Any]:
    """Load one plugin. Raises PluginError where it is not installed or does not load."""
    if not isinstance(name, str):
        return name
    entries = installed(group)
    if name not in entries:
        close = get_close_matches(name, entries, n=1)
        hint = f"did you mean {close[0]}?" if close else f"installed are {', '.join(entries)}"
        raise PluginError(f"there is no {_KINDS[group]} {name!r}", hint)
    try:
        return cast("Callable[..., Any]", entries[name].load())
    except RAISED_BY_OTHERS as error:
        missing = f": pip install {error.name}" if isinstance(error, ModuleNotFoundError) else ""
        hint = f"install what it needs{missing}"
        raise PluginError(f"{name} does not load: {in_words(error)}", hint) from error


def make(
    group: str, named: str | Callable[..., Any], *arguments: object, **settings: object
) -> Any:
    """Return what a strategy or a metric makes of these; others' code may raise anything.

    Raises PluginError, also for an object that is none.
    """
    call, what = load(group, named), f"the {_KINDS[group]} {name_of(named)}"
    with errors_of_others(PluginError, f"{what} cannot be made", _PROTOCOL):
        plugin = call(*arguments, **settings)
        lacking = [member for member in _MEMBERS[group] if not hasattr(plugin, member)]
    if lacking:
        raise PluginError(f"{what} lacks {', '.join(lacking)}", _PROTOCOL)
    return plugin


def load_strategy(named: str | Callable[..., Any], **settings: Any) -> Strategy:
    """Return a strategy by the name it is installed under, made with its own settings, if any."""
    strategy = cast("Strategy", make(STRATEGIES, named, **settings))
    if not isinstance(strategy.largest, int | None):
        raise PluginError(f"the strategy {name_of(named)} has no number as largest", _PROTOCOL)
    return strategy


def leave_page(folder: Path) -> str:
    """Write `report.html` into a run folder; return what went wrong in one line, "" for nothing.

    The run stands whatever becomes of its page.
    """
    try:
        load(REPORTS, "html")(folder)
    except PrecisionBisectError as error:
        return error.one_line()
    return ""
