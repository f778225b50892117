"""Where a file computes in a 16-bit type by itself, and what becomes NaN or Inf there."""

from collections.abc import Sequence

from precision_bisect.explaining.diagnosis.findings import Broken, FileRounding
from precision_bisect.explaining.diagnosis.instrument import Instrument
from precision_bisect.explaining.diagnosis.watched_tensors import births, watched_under
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample


def file_rounding(instrument: Instrument, samples: Sequence[Sample]) -> FileRounding | None:
    """Return what the file rounds with every layer high; None where it declares nothing low.

    Raises RuntimeError where a run fails.
    """
    model = instrument.model
    if not model.low_tensors:
        return None
    high = Plan.all_high(len(model.table.candidates))
    watched = watched_under(instrument, {}, samples, high)
    broken = []
    for birth in births(model, watched):
        made = next(each.outputs for each in model.table.layers if each.name == birth.layer)
        seen = {sample for name in made for sample in watched.broken.get(name, ())}
        broken.append(Broken(layer=birth.layer, born=birth.born, samples=len(seen)))
    kinds = {LOW_TYPES[name].onnx_type: name for name in LOW_TYPES}
    return FileRounding(
        types=sorted({kinds[kind] for kind in model.low_tensors.values() if kind in kinds}),
        layers=[
            str(each.name)
            for each in model.table.layers
            if not model.low_tensors.keys().isdisjoint(each.outputs)
        ],
        broken=broken,
        of_samples=len(samples),
    )
