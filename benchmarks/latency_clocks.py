"""The two clocks of `precision_bisect.backends.timing` on one engine of ONNX Runtime on CUDA.

    python benchmarks/latency_clocks.py MODEL [INPUT:1x3x224x224 ...]

Both time the same session in turns, inputs and outputs bound on the device. It runs on PyCUDA's
stream, so that events can lie round it. Prints a line of JSON per clock: median, spread, runs.
"""

import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path

from precision_bisect.backends.cuda.cuda_engine import bound
from precision_bisect.backends.cuda.provider import CUDA, deployed_provider
from precision_bisect.backends.timing import launches, measure_by, measured_latency
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.ort import runtime
from precision_bisect.judging.inputs.synthetic import synthetic_samples
from precision_bisect.settings.reading import parse_shapes
from precision_bisect.trial import Latency

TURNS = 11


class NoStream:
    """Stands for the stream that launches would be on without PyCUDA."""

    ptr = 0

    def synchronize(self) -> None:
        """Do nothing."""


def main(path: Path, shapes: list[str]) -> None:
    """Time a model by both clocks, and print what they say."""
    (feed,) = synthetic_samples(load_model(path), parse_shapes(shapes), 1, 0)
    with launches(NoStream()) as timer:
        if timer.method != "cuda_events":
            raise SystemExit("PyCUDA cannot be used here")
        options = {**deployed_provider(), "user_compute_stream": str(timer.stream)}
        session = runtime().InferenceSession(str(path), providers=[(CUDA, options)])
        binding = bound(session, feed, "cuda")
        # What the host waits for would else be inside the events.
        unawaited = runtime().RunOptions()
        unawaited.add_run_config_entry("disable_synchronize_execution_providers", "1")

        def awaited() -> None:
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()

        def launched() -> float:
            return timer.seconds(lambda: session.run_with_iobinding(binding, unawaited))

        turns = [
            (measured_latency(awaited), measure_by(launched, timer.method)) for _ in range(TURNS)
        ]
    for found in zip(*turns, strict=True):
        print(json.dumps(over(found)))


def over(turns: tuple[Latency, ...]) -> dict[str, object]:
    """Return the median turn, with the spread of the turns' medians beside that of its runs."""
    medians = [turn.median_ms for turn in turns]
    middle = sorted(turns, key=lambda turn: turn.median_ms)[len(turns) // 2]
    low, _, high = statistics.quantiles(medians, n=4, method="inclusive")
    return {**asdict(middle), "turns": len(turns), "spread_of_turns_ms": high - low}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
