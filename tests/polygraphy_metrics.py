"""The metrics that are Polygraphy's, of all that are installed."""

from precision_bisect.judging.comparators.polygraphy_plugin import by_polygraphy
from precision_bisect.plugins import COMPARATORS, installed

METRICS = [name for name, each in installed(COMPARATORS).items() if each.load() is by_polygraphy]
