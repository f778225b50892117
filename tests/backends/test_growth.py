"""What a run does once grows with the layers, not with their square: steps are counted."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from large_model import BLOCK_LAYERS, make

from effort import steps_of
from precision_bisect.backends.emulation import segments
from precision_bisect.backends.emulation.fixed_edges import for_plan
from precision_bisect.backends.emulation.segments import cut
from precision_bisect.backends.emulation.switched import switch
from precision_bisect.graphs.fusing.fuse import fused
from precision_bisect.graphs.fusing.norms import find_decomposed
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.precisions import Pair
from precision_bisect.search.speed.costs import cost_graph

BLOCKS, TIMES = 8, 4
FP16 = Pair(low="fp16", high="fp32")


def switched_for_one_plan(model: Model) -> None:
    """Make the graph of all plans, and of it that of one."""
    low = np.ones(len(model.table.candidates), bool)
    for_plan(switch(model, FP16, Scales(), tf32=True), model, low, bare=True)


STEPS: dict[str, Callable[[Model], object]] = {
    "reading the file": lambda model: load_model(model.path),
    "switching": switched_for_one_plan,
    "cutting": lambda model: [*cut(switch(model, FP16, Scales()), model, bare=True)],
    "finding norms": find_decomposed,
    "fusing norms": lambda model: fused(model, find_decomposed(model)),
    "costs": lambda model: cost_graph(model, {"x": (2, 8)}),
    "types": lambda model: TypedWriter(model, FP16),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("growth")


@pytest.mark.parametrize("step", STEPS)
def test_steps_are_linear_in_layers(
    step: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 20,000 layers a walk over the graph for each segment takes 15 s, for each norm more."""
    monkeypatch.setattr(segments, "MOST_SWITCHES", 8)
    counts = []
    for blocks in (BLOCKS, TIMES * BLOCKS):
        place = folder / str(blocks)
        place.mkdir(exist_ok=True)
        path, _ = make(place, blocks * BLOCK_LAYERS + BLOCK_LAYERS, 2, 0, width=8)
        model = load_model(path)
        counts.append(steps_of(lambda: STEPS[step](model)))  # noqa: B023
    assert counts[1] <= 1.1 * TIMES * counts[0]
