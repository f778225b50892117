"""Real networks as oracles: the example, judged by the emulator."""

from pathlib import Path

import numpy as np
import pytest
import search_networks
from search_networks import NETWORKS, Emulated
from search_networks_table import markdown
from search_rows import load

from precision_bisect.trial import Kind, SampleSet

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def nafnet() -> Emulated:
    """Return the example."""
    return Emulated(NETWORKS["nafnet"], Path())


def test_the_limits_lie_between_both_ends(nafnet: Emulated) -> None:
    """At each of the three limits all-high passes and all-low fails."""
    ends = [np.full(nafnet.problem.size, low) for low in (False, True)]
    for limit in NETWORKS["nafnet"].limits:
        judge = nafnet.judge(limit)
        assert [True, False] == [judge(low, Kind.JUDGE).passed for low in ends]


def test_forecasts_see_fewer_inputs(nafnet: Emulated) -> None:
    """Forecasts are the errors over some of the inputs: never above those over all."""
    rng = np.random.default_rng(0)
    for low in rng.random((3, nafnet.problem.size)) < 0.02:
        few = nafnet.error(low, SampleSet.RANKING)
        assert few <= nafnet.error(low, SampleSet.JUDGED)
        assert few == nafnet.judge(2.0)(low, Kind.PREDICT).error * 2.0  # type: ignore[operator]


def test_the_command_writes_what_a_search_came_to(tmp_path: Path) -> None:
    """Polygraphy's bisection of the example ends in a row, a table, and a summary."""
    out = tmp_path / "networks.json"
    asked = ["--networks", "nafnet", "--limits", "1e-2", "--jobs", "1", "--out", str(out)]
    assert 0 == search_networks.main([*asked, "--algorithms", "polygraphy bisect forward"])
    (row,) = load(out)
    assert ("nafnet tol 0.01", 300, None) == (row.structure, row.size, row.rho)
    assert row.figures.calls <= 10
    assert f"| polygraphy bisect forward | {row.figures.ratio:.0f} |" in markdown([row])
    assert 0 == search_networks.main(
        [*asked, "--resume", "--algorithms", "polygraphy bisect forward"]
    )
    assert [row] == load(out)
