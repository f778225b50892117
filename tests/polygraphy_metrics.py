"""The metrics that are Polygraphy's, of those that come along."""

from precision_bisect.judging.comparators import metrics

METRICS = [name for name, metric in metrics.METRICS.items() if metric.called is not None]
