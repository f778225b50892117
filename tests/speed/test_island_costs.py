"""What islands of kept layers cost, against what the typed graphs say that is there without them.

An engine whose kernels take a fixed time each is the oracle: its total is known for every plan.
"""

from zlib import crc32

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from models import save
from precision_bisect.backends.cuda.cuda_backend import times_on
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.runs.results.layer_costs import Costs
from precision_bisect.search.speed.costs import cost_graph
from precision_bisect.search.speed.island_costs import island_costs
from precision_bisect.search.speed.kernel_times import KernelTimes
from random_graphs import random_models


class Additive:
    """An engine on which every node of a typed graph is a kernel; high nodes take longer."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.writer = TypedWriter(model, Pair(low="fp16", high="fp32"))

    def took(self, plan: Plan) -> dict[str, float]:
        """Return the milliseconds of every node of a plan's typed graph; constants take none."""
        nodes = self.writer.write(plan, guard_islands=False).proto.graph.node
        high = self.writer.high_nodes(plan)
        return {
            node.name: (crc32(node.name.encode()) % 97 + 1) * (3.0 if node.name in high else 1.0)
            for node in nodes
            if node.op_type != "Constant"
        }

    def times(self, plan: Plan) -> KernelTimes:
        """Return the kernels of a plan."""
        graph = self.writer.write(plan, guard_islands=False).proto.graph
        return times_on(self.took(plan), graph, graph, self.model.table)

    def costs(self, plan: Plan) -> Costs:
        """Return what the kept layers of a plan cost."""
        times = (self.times(plan), self.times(Plan.of(())))
        return island_costs(self.writer, cost_graph(self.model, {}), plan, times, None)


@given(st.data())
def test_savings_are_those_of_the_engine(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """An island saves what the engine saves without it: layers, Casts gone and added.

    Only what neither of the two engines has that were timed cannot be known.
    """
    path = save(data.draw(random_models()), tmp_path_factory.mktemp("model"))
    engine = Additive(load_model(path))
    names = engine.model.table.names
    assume(names)
    plan = Plan.of(data.draw(st.sets(st.sampled_from(range(len(names))), min_size=1)))
    costs = engine.costs(plan)
    kept = [names[index] for index in plan.indices]
    assert sorted(kept) == sorted(name for each in costs.islands for name in each.layers)
    before, low = engine.took(plan), engine.took(Plan.of(()))
    for island in costs.islands:
        without = plan.without(names.index(LayerName(name)) for name in island.layers)
        after = engine.took(without)
        known = all(
            ms == low.get(name) for name, ms in after.items() if ms != before.get(name)
        ) and all(name not in low for name in before.keys() - after.keys())
        if known:
            saved = sum(before.values()) - sum(after.values())
            assert saved == pytest.approx(island.saves_ms)
