"""How well a ranking by the tensors of a low engine agrees with the direct one, on the zoo.

The emulator stands for the engine: it shows every tensor. Directly each layer runs low alone.

    python benchmarks/tensor_ranking.py --cache CACHE nafnet resnet18
"""

import argparse
from collections.abc import Sequence
from itertools import starmap
from pathlib import Path

import numpy as np

from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.emulation.engine_errors import look_into
from precision_bisect.backends.emulation.error_forecasts import ErrorForecasts
from precision_bisect.backends.inspection.shown_tensors import ShownTensor
from precision_bisect.explaining.diagnosis.hurting import peak
from precision_bisect.explaining.diagnosis.instrument import Instrument
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.graphs.node_views import computed
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Sample
from zoo.networks import NETWORKS, SkippedError, prepare

MOST_LAYERS, MOST_SAMPLES = 200, 2


def main() -> None:
    """Print the rank correlation of each network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--cache", type=Path, required=True, help="prepared networks")
    asked = parser.parse_args()
    for name in asked.networks:
        try:
            folder = prepare(name, asked.cache)
        except SkippedError as why:
            print(f"{name:<20} skipped: {why}", flush=True)
            continue
        model = load_model(folder / "model.onnx")
        files = sorted((folder / "judged").glob("*.npz"))[:MOST_SAMPLES]
        feeds = [dict(np.load(file)) for file in files]
        count, correlation = agreement(model, feeds)
        print(f"{name:<20} {count:>4} layers  {correlation:.3f}", flush=True)


def agreement(model: Model, feeds: Sequence[Sample]) -> tuple[int, float]:
    """Return how many layers were ranked both ways, and Spearman's correlation."""
    instrument = Instrument(model, Pair(low="fp16", high="fp32"))

    def show(plan: Plan, feeds: Sequence[Sample]) -> list[list[ShownTensor]]:
        shown: list[list[ShownTensor]] = [[] for _ in feeds]
        for tensors in instrument.shown(computed(model), feeds, plan):
            shown[tensors.sample] += [
                ShownTensor(name=name, nodes=(), tensors=(name,), values=array)
                for name, array in tensors.emulated.items()
            ]
        return shown

    forecasts = ErrorForecasts(model, look_into(model, LOW_TYPES["fp16"], feeds, show), feeds)
    direct = EmulatedBackend(model)
    size = len(model.table.candidates)
    everything = Plan.all_high(size)
    exact = [direct.evaluate(everything, feed) for feed in feeds]
    layers = range(0, size, max(1, size // MOST_LAYERS))

    def error(backend: EmulatedBackend | ErrorForecasts, layer: int) -> float:
        plan = everything.without([layer])
        outputs = [backend.evaluate(plan, feed) for feed in feeds]
        pairs = [
            (want[name], got[name])
            for want, got in zip(exact, outputs, strict=True)
            for name in want
            if want[name].dtype == np.float32
        ]
        return max(starmap(peak, pairs))

    places = [
        ranks([error(backend, layer) for layer in layers]) for backend in (direct, forecasts)
    ]
    return len(layers), float(np.corrcoef(places[0], places[1])[0, 1])


def ranks(errors: Sequence[float]) -> Sequence[float]:
    """Return the places in order; equal ones share theirs."""
    ordered = np.sort(errors)
    first, behind = (np.searchsorted(ordered, errors, side) for side in ("left", "right"))
    places: Sequence[float] = ((first + behind - 1) / 2).tolist()
    return places


if __name__ == "__main__":
    main()
