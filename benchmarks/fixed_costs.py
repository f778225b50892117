"""What a run does beside its inferences, and when a plan that passes is in hand.

    python benchmarks/fixed_costs.py MODEL INPUTS --tol 1e-3

Runs a search in this process, on one thread, and prints JSON: how often modules were imported,
sessions opened, samples run and shapes inferred, each with its seconds of CPU time, and all that
is left. `in_hand` has the CPU time until a plan other than every layer high passed first, in plain
inferences of a sample; `--until-in-hand` ends the run there. Times depend on the machine's other
work, counts do not.
"""

import argparse
import builtins
import json
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

PLAIN_S = 2.0
"""Seconds of CPU time that plain inferences are repeated for, at least."""


class Costs:
    """Counts calls and their CPU time; a call inside another one is part of that."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.seconds = defaultdict[str, float](float)
        self._inside = False

    def counted(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that is counted as of a kind."""

        @wraps(call)
        def counting(*arguments: Any, **settings: Any) -> Any:
            if self._inside:
                return call(*arguments, **settings)
            self._inside, began = True, time.process_time()
            try:
                return call(*arguments, **settings)
            finally:
                self._inside = False
                self.calls[kind] += 1
                self.seconds[kind] += time.process_time() - began

        return counting

    def watch(self) -> None:
        """Count what libraries do from here on, and imports."""
        builtins.__import__ = self.counted("imports", builtins.__import__)
        import onnx
        import onnxruntime

        session = onnxruntime.InferenceSession
        session.__init__ = self.counted("sessions opened", session.__init__)
        for name in ("run", "run_with_iobinding"):
            setattr(session, name, self.counted("runs of a sample", getattr(session, name)))
        inference = onnx.shape_inference
        inference.infer_shapes = self.counted("shape inferences", inference.infer_shapes)


def spent_s() -> float:
    """Return the seconds of CPU time of this process and of its children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def plain_s(model: Path, samples: list[dict[str, Any]]) -> float:
    """Return the CPU time of a plain inference of a sample, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    for sample in samples:
        session.run(None, sample)
    count, began = 0, time.process_time()
    while (spent := time.process_time() - began) < PLAIN_S:
        session.run(None, samples[count % len(samples)])
        count += 1
    return spent / count


def measured(model: Path, inputs: Path, tol: float, *, whole: bool) -> dict[str, Any]:
    """Return what a run costs, `whole` or up to the first plan that passes, with its seconds."""
    began, costs, loaded = spent_s(), Costs(), len(sys.modules)
    costs.watch()
    from precision_bisect import find
    from precision_bisect.runs.monitoring.events import Event, RunStarted, TrialFinished
    from precision_bisect.trial import Kind

    passed, candidates = list[float](), 0

    def note(event: Event) -> None:
        nonlocal candidates
        if isinstance(event, RunStarted):
            candidates = event.candidates
        if isinstance(event, TrialFinished) and event.outcome.passed and not event.proposal.case:
            judged = event.proposal.kind is not Kind.PREDICT
            if judged and len(event.proposal.plan) < candidates:
                passed.append(spent_s() - began)
                if not whole:
                    raise KeyboardInterrupt

    with TemporaryDirectory() as folder, suppress(KeyboardInterrupt):
        out = Path(folder) / "run"
        find(model, tol=tol, inputs=inputs, out=out, observer=note, threads=1)
    spent = spent_s() - began
    costs.calls["imports"] = len(sys.modules) - loaded
    rest_s = spent - sum(costs.seconds.values())
    return {
        "candidates": candidates,
        "cpu_s": round(spent, 2),
        **{kind: [n, round(costs.seconds[kind], 2)] for kind, n in sorted(costs.calls.items())},
        "all_else_s": round(rest_s, 2),
        "in_hand_s": passed[0] if passed else None,
    }


def main() -> None:
    """Measure one run, and a plain inference after it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("inputs", type=Path)
    parser.add_argument("--tol", type=float, default=1e-2)
    parser.add_argument("--until-in-hand", action="store_true")
    asked = parser.parse_args()
    costs = measured(asked.model, asked.inputs, asked.tol, whole=not asked.until_in_hand)
    from precision_bisect.graphs.load import load_model
    from precision_bisect.judging.inputs.input_check import check_samples
    from precision_bisect.judging.inputs.input_files import read_samples

    model = load_model(asked.model)
    samples = check_samples(
        model, read_samples(asked.inputs, [spec.name for spec in model.inputs])
    )
    plain = plain_s(asked.model, [dict(sample) for sample in samples])
    in_hand_s = costs.pop("in_hand_s")
    costs["plain_ms"] = round(plain * 1e3, 3)
    costs["in_hand"] = None if in_hand_s is None else round(in_hand_s / plain)
    print(json.dumps({"model": asked.model.parent.name, "tol": asked.tol, **costs}))


if __name__ == "__main__":
    main()
