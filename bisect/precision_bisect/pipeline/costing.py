"""What the kept layers of an answer cost: two plans are profiled in a process of their own.

It is done once, of an answer whose layers may cost something, and takes a bounded time. Whatever
goes wrong there costs the figures alone.
"""

from collections.abc import Mapping

from precision_bisect.backends.cuda.provider import ONE_BY_ONE
from precision_bisect.errors import shortened
from precision_bisect.machine.user_scripts import first_line
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.plan import Plan
from precision_bisect.results.layer_costs import MATTERS, Costs
from precision_bisect.search.budget import Budget
from precision_bisect.speed.costs import cost_graph
from precision_bisect.speed.island_costs import island_costs
from precision_bisect.typed.rewrite import TypedWriter

PROFILING_SHARE, LEAST_PROFILING_S = 0.1, 6.0
"""Share of the run's time so far that profiling may take, and seconds that are added: a process
with CUDA starts in about four. Bounds."""


def costs_of(
    prepared: Prepared, plan: Plan, latencies: Mapping[str, float | None], budget: Budget
) -> Costs | None:
    """Return what a plan's layers cost; None where no engine tells, or no layer is kept.

    `latencies` are those of the result, in milliseconds.
    """
    if prepared.backend.emulated or not plan.kept:
        return None
    low, kept = latencies.get("all_low"), latencies.get("kept")
    if prepared.options.elsewhere:
        return Costs(left_out="engines are built elsewhere")
    if budget.late:
        return Costs(left_out="the time was spent")
    if low is not None and kept is not None and kept - low < MATTERS * kept:
        return Costs(left_out=f"every layer low takes {low:.3g} ms, the answer {kept:.3g}")
    limit_s = LEAST_PROFILING_S + PROFILING_SHARE * budget.elapsed_s()
    try:
        return profiled(prepared, plan, kept, limit_s)
    except KeyboardInterrupt:
        return Costs(left_out="interrupted")
    except Exception as error:  # whatever an engine's library raises: the answer stands
        return Costs(left_out=shortened(first_line(error)))


def profiled(prepared: Prepared, plan: Plan, latency: float | None, limit_s: float) -> Costs:
    """Return what a plan of this latency costs, by a process that is ended after `limit_s`.

    Raises what goes wrong there.
    """
    # Imported here: loky and psutil are for runs that need them.
    from precision_bisect.isolation import child
    from precision_bisect.isolation.slot import Limits, Slot

    spec, gpus = prepared.work / "profiled.spec", prepared.options.gpus
    prepared.spec.save(spec)
    slot = Slot(
        spec=spec,
        # The folder of a worker: its timing cache makes builds of TensorRT quick.
        folder=prepared.work / "worker-1",
        gpu=gpus[0] if gpus else None,
        variables=ONE_BY_ONE if prepared.backend.name == "onnxruntime" else {},
    )
    limits = Limits(time_s=limit_s, memory_mib=prepared.options.trial_memory_mib)
    try:
        answer, low = slot.call_bare(child.times, spec, [plan, Plan.of(())], limits=limits)
    finally:
        slot.end()
    model = prepared.model
    writer = TypedWriter(model, prepared.pair, prepared.scales)
    shapes = {name: array.shape for name, array in prepared.samples[0].items()}
    graph = prepared.graph or cost_graph(model, shapes)
    return island_costs(writer, graph, plan, (answer, low), latency)
