"""What a run begins with, for tests of what watches one."""

from precision_bisect.monitoring.events import RunStarted
from precision_bisect.results.run_status import Process

PROCESS = Process(pid=7, host="box", version="0.1.0")

STARTED = RunStarted(
    model="m.onnx",
    backend="emulated",
    why="",
    strategy="guided",
    assumption="none",
    candidates=20,
    layers_total=20,
    samples=1,
    held_out=0,
    tolerance=0.01,
    resumed_trials=0,
)
