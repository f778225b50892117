"""What the kept layers of an answer cost: two plans are profiled in a process of their own.

It is done once, of an answer whose layers may cost something, and takes a bounded time. Its
process loads the model while other things are looked into. Whatever goes wrong there costs the
figures alone.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from precision_bisect.backends.cuda.provider import ONE_BY_ONE
from precision_bisect.errors import RunFolderError, shortened
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.machine.user_scripts import first_line
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.plan import Plan
from precision_bisect.runs.results.layer_costs import MATTERS, Costs
from precision_bisect.search.budget import Budget
from precision_bisect.search.speed.costs import cost_graph
from precision_bisect.search.speed.island_costs import island_costs

PROFILING_SHARE, LEAST_PROFILING_S = 0.1, 6.0
"""Share of the run's time so far that profiling may take, and seconds that are added: a process
with CUDA starts in about four. Bounds."""


@contextmanager
def costing(
    prepared: Prepared, plan: Plan | None, latencies: Mapping[str, float | None], budget: Budget
) -> Iterator[Callable[[], Costs | None]]:
    """Begin a process that can profile a plan; within, the call says what the plan's layers cost.

    It returns None where no engine tells, or no layer is kept: nothing is begun then, nor where
    that is not worth its time. `latencies` are those of the result, in milliseconds.
    """
    if prepared.backend.emulated or plan is None or not plan.kept:
        yield lambda: None
    elif reason := _not_worth(prepared, latencies, budget):
        yield lambda: Costs(left_out=reason)
    else:
        with profiling(prepared) as profiled:
            yield lambda: _costs(profiled, plan, latencies.get("kept"), budget)


def _not_worth(prepared: Prepared, latencies: Mapping[str, float | None], budget: Budget) -> str:
    """Return why nothing is profiled, "" where it is."""
    low, kept = latencies.get("all_low"), latencies.get("kept")
    if prepared.options.elsewhere:
        return "engines are built elsewhere"
    if budget.late:
        return "the time was spent"
    if low is not None and kept is not None and kept - low < MATTERS * kept:
        return f"every layer low takes {low:.3g} ms, the answer {kept:.3g}"
    return ""


def _costs(
    profiled: Callable[[Plan, float | None, float], Costs],
    plan: Plan,
    latency: float | None,
    budget: Budget,
) -> Costs:
    try:
        return profiled(plan, latency, LEAST_PROFILING_S + PROFILING_SHARE * budget.elapsed_s())
    except KeyboardInterrupt:
        return Costs(left_out="interrupted")
    except Exception as error:  # whatever an engine's library raises: the answer stands
        return Costs(left_out=shortened(first_line(error)))


@contextmanager
def profiling(prepared: Prepared) -> Iterator[Callable[[Plan, float | None, float], Costs]]:
    """Begin a process that loads the model; within, the call has it profile a plan.

    The call takes the plan, its latency in milliseconds and the seconds after which the process
    is ended. It raises what goes wrong there.
    """
    # Imported here: loky and psutil are for runs that need them.
    from precision_bisect.execution import child
    from precision_bisect.execution.slot import Death, Limits, Slot

    spec, gpus = prepared.work / "profiled.spec", prepared.options.gpus
    prepared.spec.save(spec)
    slot = Slot(
        spec=spec,
        # The folder of a worker: its timing cache makes builds of TensorRT quick.
        folder=prepared.work / "worker-1",
        gpu=gpus[0] if gpus else None,
        variables=ONE_BY_ONE if prepared.backend.name == "onnxruntime" else {},
    )

    def profiled(plan: Plan, latency: float | None, limit_s: float) -> Costs:
        limits = Limits(time_s=limit_s, memory_mib=prepared.options.trial_memory_mib)
        answer, low = slot.call_bare(child.times, spec, [plan, Plan.of(())], limits=limits)
        model = prepared.model
        writer = TypedWriter(model, prepared.pair, prepared.scales)
        shapes = {name: array.shape for name, array in prepared.samples[0].items()}
        graph = prepared.graph or cost_graph(model, shapes)
        return island_costs(writer, graph, plan, (answer, low), latency)

    with suppress(RunFolderError, Death):
        slot.begin(child.backend_facts, spec)
    try:
        yield profiled
    finally:
        slot.end()
