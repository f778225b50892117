"""What a CUDA graph takes off the latency of ONNX Runtime on CUDA, with and without TF32.

    python benchmarks/cuda_graph.py MODEL [MODEL ...]

Times every layer in FP32 and every candidate in FP16, each on a session with the options that a
run deploys: launched kernel by kernel, and replayed as a graph, in turns. Prints a line of JSON
for each model: milliseconds, medians over the turns.
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from precision_bisect.backends.cuda.cuda_backend import CudaBackend
from precision_bisect.backends.cuda.cuda_engine import BoundRun
from precision_bisect.backends.cuda.opening import Opener
from precision_bisect.backends.cuda.provider import deployed_provider, on_cuda
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.typed.model_files import TypedFolder
from precision_bisect.graphs.typed.pinning import pin_formless, pin_unbuildable
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.judging.inputs.synthetic import synthetic_samples
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.settings.engine_settings import EngineSettings

TURNS = 7
PAIR = Pair(low="fp16", high="fp32")


def timed(path: Path, work: Path) -> dict[str, Any]:
    """Return the milliseconds of a model with its first made-up sample."""
    model = pin_formless(load_model(path), PAIR)
    backend = CudaBackend(TypedWriter(model, PAIR), EngineSettings(), work)
    model = pin_unbuildable(model, backend, PAIR.low)
    (feed,) = synthetic_samples(model, {}, 1, 0)
    versions = dict(backend.versions())
    size = len(model.table.candidates)
    writer, typed = TypedWriter(model, PAIR), TypedFolder(work / "typed", from_root=True)
    figures: dict[str, Any] = {"model": path.stem, "layers": size, "device": versions["device"]}
    for name, plan in (("fp32", Plan.all_high(size)), ("fp16", Plan.of(()))):
        for tf32 in (False, True):
            opener = Opener(
                providers=on_cuda(deployed_provider(tf32=tf32)),
                profiles=work / "profile",
                data=typed.root,
                capturing=True,
            )
            with typed.saved(writer.write(plan, guard_islands=False)) as file:
                opened = opener.open(file)
            opened.session.run(None, feed)
            opened.session.end_profiling()
            both = [
                BoundRun(opened.session, feed, "cuda", captures=captures)
                for captures in (False, opened.captures)
            ]
            turns = [[run.latency() for run in both] for _ in range(TURNS)]
            launched, replayed = (
                statistics.median(latency.median_ms for latency in latencies)
                for latencies in zip(*turns, strict=True)
            )
            figures[f"{name}, TF32 {'on' if tf32 else 'off'}"] = {
                "launched_ms": launched,
                "replayed_ms": replayed if turns[0][1].method == "cuda_graph" else None,
            }
    return figures


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(timed(Path(name), Path(folder))), flush=True)
