"""The comparator that the options ask for: an installed one, a check, or the user's own script.

To add one, write a `MakeComparator` and name it in the entry points of the group
`precision_bisect.comparators`, under what `--metric` calls it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias, cast

from precision_bisect.comparators.guarded import Guarded
from precision_bisect.comparators.polygraphy import PolygraphyComparator
from precision_bisect.comparators.ready_made import ready_made
from precision_bisect.comparators.script import ScriptComparator
from precision_bisect.comparators.tolerance import tolerance_from
from precision_bisect.errors import UsageError
from precision_bisect.options import Options
from precision_bisect.plugins import COMPARATORS, load
from precision_bisect.protocols import Comparator
from precision_bisect.settings.check_words import read_check

MakeComparator: TypeAlias = Callable[[Options, Sequence[str], Collection[str]], Comparator]
"""Makes a comparator from the options, the model's outputs, and those that are classes.

Raises UsageError for limits that are missing, not positive, or of unknown outputs.
"""


def choose_comparator(
    options: Options, outputs: Sequence[str], classes: Collection[str] = ()
) -> Comparator:
    """Return the comparator for a model with these outputs; see `MakeComparator`.

    Raises what that does, and PluginError for a metric that is not installed.
    """
    if options.check is not None:
        return _check(options, options.check, outputs)
    make = cast("MakeComparator", load(COMPARATORS, options.metric))
    made = make(options, outputs, classes)
    ours = isinstance(made, PolygraphyComparator)
    return made if ours else Guarded(comparator=made, name=options.metric)


def _check(options: Options, check: str, outputs: Sequence[str]) -> Comparator:
    words = read_check(check)
    if options.atol is not None or options.rtol is not None:
        raise UsageError("--check has one figure of its own", "give its limit by --tol")
    if isinstance(options.tol, Mapping):
        raise UsageError("--check judges all outputs at once", "give one number to --tol")
    tolerance = tolerance_from(options.tol, "--tol", zero=True).default
    if words.script is None:
        return ready_made(words, outputs, tolerance)
    return ScriptComparator(words.script, words.name, tolerance)
