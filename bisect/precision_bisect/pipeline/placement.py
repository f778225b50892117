"""Where the plans of a run are evaluated: in this process, in children of it, or on a cluster.

A backend that builds engines lives in child processes: a crash there is an outcome.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from precision_bisect.backends.choose_backend import choose_backend
from precision_bisect.cluster.cluster_client import ClusterClient
from precision_bisect.cluster.uniformity import require_alike_gpus
from precision_bisect.isolation.kit import Kit
from precision_bisect.isolation.survey import isolated, surveyed
from precision_bisect.model.load import Model
from precision_bisect.options import Options
from precision_bisect.pipeline.loading import Loaded
from precision_bisect.protocols import Backend, Described
from precision_bisect.quantization.scales import Scales
from precision_bisect.search.sample_sets import sample_sets
from precision_bisect.typed.pinning import settle


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The backend of a run, and where it is.

    `options` name it; in `model` the layers are pinned that it cannot run low. `here` is the
    backend if it builds in this process, else None. `why` is the reason for the choice.
    """

    options: Options
    model: Model
    backend: Described
    here: Backend | None
    why: str


def place(loaded: Loaded, scales: Scales, work: Path, cluster: ClusterClient | None) -> Placed:
    """Choose the backend for the options' pair of types, and ask it what it cannot run low.

    `work` is an empty folder. Raises a PrecisionBisectError where no backend can be used.
    """
    if cluster is not None:
        return _on_cluster(loaded, scales, cluster)
    options, model = loaded.options, loaded.model
    chosen = choose_backend(options, loaded.samples, work, scales=scales)
    options = replace(options, backend=chosen.name)
    here = None if isolated(options) else chosen.make(model)
    if here is None and not (options.mixed_gpus or options.backend == "emulated"):
        require_alike_gpus(options.gpus)
    kit = _kit(replace(loaded, options=options), scales)
    backend = surveyed(kit, work, options) if here is None else here
    settled = settle(model, backend, options.low)
    # Pinned layers change the table, and a backend numbers layers by the table that it was made
    # with.
    if here is not None and settled is not model:
        here = chosen.make(settled)
    return Placed(options=options, model=settled, backend=backend, here=here, why=chosen.why)


def _on_cluster(loaded: Loaded, scales: Scales, cluster: ClusterClient) -> Placed:
    """Let the workers choose the backend; the run has as many workers as there are now."""
    options = loaded.options
    found, workers = cluster.survey(_kit(loaded, scales))
    return Placed(
        options=replace(options, backend=found.backend, workers=workers),
        model=settle(loaded.model, found.survey, options.low),
        backend=found.survey,
        here=None,
        why=found.why,
    )


def _kit(loaded: Loaded, scales: Scales) -> Kit:
    """Return what makes a backend in another process, before the pinned layers are known."""
    return Kit(
        options=replace(loaded.options, inputs=None),
        digest=loaded.model.digest,
        table=loaded.model.table,
        comparator=loaded.comparator,
        samples=sample_sets(loaded.samples, loaded.reference, len(loaded.judging)),
        scales=scales,
        keep=loaded.options.folder.absolute(),
    )
