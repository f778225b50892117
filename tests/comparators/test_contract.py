"""The contract of comparators: ours keep it, the documented one keeps it, broken ones are told."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import normal, parse, save, with_weights
from precision_bisect.commandline.main import main
from precision_bisect.comparators.choose_comparator import choose_comparator
from precision_bisect.comparators.script import ScriptComparator
from precision_bisect.options import Options
from precision_bisect.protocols import Comparator, Judgement, Sample
from precision_bisect.testing.comparator_contract import check_comparator
from precision_bisect.testing.driving import ContractError
from precision_bisect.trial import Verdict

DOCUMENT = Path(__file__).parents[2] / "docs" / "comparators.md"
EXAMPLE, TEST = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
OUTPUTS: list[Sample] = [{"logits": normal(32, 10)}, {"logits": normal(32, 10, seed=1)}]


class Lenient:
    """Passes everything that is finite, and keeps the contract as far as it is told."""

    tolerance: float | None = 0.1

    def settings(self) -> dict[str, Any]:
        """Say nothing."""
        return {}

    def judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        """Give the largest difference, at most the tolerance."""
        del reference
        if not all(np.isfinite(array).all() for each in outputs for array in each.values()):
            return Judgement(verdict=Verdict.FAIL, error=np.inf)
        return Judgement(verdict=Verdict.PASS, error=0.0)


class Careless(Lenient):
    """Judges well, and rounds the outputs in place."""

    def judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        """Give the largest difference of numbers without decimals."""
        pairs = [(o["logits"], r["logits"]) for o, r in zip(outputs, reference, strict=True)]
        error = float(np.max([np.abs(found - exact).max() for found, exact in pairs]))
        for found, _ in pairs:
            np.round(found, 1, out=found)
        passed = error <= 0.1
        return Judgement(
            verdict=Verdict.PASS if passed else Verdict.FAIL,
            error=error if np.isfinite(error) else np.inf,
        )


class Contrary(Careless):
    """Has a figure and a verdict that contradict each other."""

    def judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        """Pass whatever the figure says."""
        del outputs, reference
        return Judgement(verdict=Verdict.PASS, error=1.0)


class Unsent(Lenient):
    """Judges as Polygraphy does, by something that does not pickle."""

    def __init__(self) -> None:
        options = Options(model=Path("m.onnx"), tol=0.1)
        self._made: Callable[[], Comparator] = lambda: choose_comparator(options, ["logits"])

    def judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        """Give Polygraphy's judgement."""
        return self._made().judge(outputs, reference)


def test_the_documented_example_keeps_the_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test of the page runs as it stands beside the metric of the page."""
    (tmp_path / "metric.py").write_text(EXAMPLE)
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(TEST, scope)
    scope["test_contract"]()


def test_the_documented_example_judges_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search by the metric of the page keeps what changes answers, and no more."""
    (tmp_path / "metric.py").write_text(EXAMPLE)
    monkeypatch.chdir(tmp_path)
    body = (
        "(float[64,8] x) => (float[64,10] logits) <float k = {0.001}> "
        "{ h = MatMul(x, w) s = Mul(h, h) logits = Mul(s, k) }"
    )
    save(with_weights(parse(body), {"w": normal(8, 10) * 300}), tmp_path)
    np.savez(tmp_path / "inputs.npz", x=normal(64, 8))
    asked = ["--check", "metric.py:answers_changed", "--tol", "0.01", "--inputs", "inputs.npz"]
    assert 0 == main(["model.onnx", *asked, "--backend", "emulated", "--out", "run"])
    assert 0 == main(["model.onnx", *asked, "--max-kept", "2", "--out", "again"])


@pytest.mark.parametrize("metric", ["elementwise", "max", "mean", "quantile"])
def test_ours_keep_the_contract(metric: str) -> None:
    """Polygraphy's comparators, as they are asked for here, keep every promise."""
    options = Options(model=Path("m.onnx"), tol=1e-2, metric=metric)  # type: ignore[arg-type]
    check_comparator(choose_comparator(options, ["logits"]), OUTPUTS)


def test_no_layout_of_arrays_is_held_against_it() -> None:
    """Transposed outputs get their NaN, too."""
    options = Options(model=Path("m.onnx"), tol=1e-2)
    check_comparator(choose_comparator(options, ["logits"]), [{"logits": normal(10, 32).T}])


@pytest.mark.parametrize(
    ("comparator", "broken"),
    [
        (Lenient(), "1 - 10 \\* reference passes"),
        (Careless(), "it says"),
        (Contrary(), "error 1.0 against 0.1 is called pass"),
        (Unsent(), "it cannot be pickled"),
    ],
)
def test_broken_promises_are_told(comparator: Any, broken: str) -> None:
    """What a comparator does wrong is said in one line."""
    with pytest.raises(ContractError, match=broken):
        check_comparator(comparator, OUTPUTS)


def test_a_script_that_rolls_dice_is_told(tmp_path: Path) -> None:
    """A metric without a fixed seed does not repeat itself."""
    script = tmp_path / "dice.py"
    script.write_text(
        "import numpy as np\n\n\n"
        "def dice(outputs, reference):\n"
        "    pairs = zip(outputs, reference, strict=True)\n"
        "    off = max(np.abs(o['logits'] - r['logits']).max() for o, r in pairs)\n"
        "    return float(off) * (1 + 1e-3 * np.random.default_rng().random())\n"
    )
    with pytest.raises(ContractError, match="it says"):
        check_comparator(ScriptComparator(script, "dice", 0.5), OUTPUTS)
