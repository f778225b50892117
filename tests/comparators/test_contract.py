"""The contract of comparators: ours keep it, the documented one keeps it, broken ones are told."""

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from models import normal, parse, save, with_weights
from precision_bisect.commandline.main import main
from precision_bisect.errors import PluginError, UsageError
from precision_bisect.judging.comparators.choose_comparator import choose_comparator
from precision_bisect.judging.comparators.script import ScriptComparator
from precision_bisect.options import Options
from precision_bisect.plugins import COMPARATORS, installed
from precision_bisect.protocols import Comparator, Judgement, Sample
from precision_bisect.runs.runfolder import MIXED_MODEL, RUN_SCRIPT
from precision_bisect.testing.comparator_contract import check_comparator
from precision_bisect.testing.driving import ContractError
from precision_bisect.trial import Verdict
from precision_bisect_reports.next_steps import next_steps

EXAMPLES = Path(__file__).parents[2] / "examples"
DOCUMENT = Path(__file__).parents[2] / "docs" / "comparators.md"
EXAMPLE, _, TEST = re.findall(
    r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL
)
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


@pytest.mark.parametrize("metric", installed(COMPARATORS))
def test_every_installed_one_keeps_the_contract(metric: str) -> None:
    """Every comparator, as it is asked for here, keeps every promise."""
    tol = 40.0 if metric in ("psnr", "snr") else 1e-2
    options = Options(model=Path("m.onnx"), tol=tol, metric=metric)
    check_comparator(choose_comparator(options, ["logits"]), OUTPUTS)


@pytest.fixture
def row_norm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the example, as far as Python's metadata tells."""
    project = tomllib.loads((EXAMPLES / "row_norm/pyproject.toml").read_text())["project"]
    info = tmp_path / "site" / "row_norm-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: row-norm\nVersion: 1.0\n")
    ((group, entries),) = project["entry-points"].items()
    lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")
    for path in (info.parent, EXAMPLES / "row_norm"):
        monkeypatch.syspath_prepend(str(path))


@pytest.mark.usefixtures("row_norm")
def test_a_comparator_from_elsewhere_keeps_the_contract() -> None:
    """One file and one entry are a metric; limits that it does not know are wrong usage."""
    options = Options(model=Path("m.onnx"), metric="row-norm")
    check_comparator(choose_comparator(options, ["logits"]), OUTPUTS)
    with pytest.raises(UsageError, match="one limit"):
        choose_comparator(replace(options, tol={"logits": 0.1}), ["logits"])


@pytest.mark.usefixtures("row_norm")
def test_a_comparator_from_elsewhere_judges_a_run(tmp_path: Path) -> None:
    """A search by row norms keeps what overflows; a script that could not judge so is not left."""
    found = tiny.search(
        tiny.write_model(tmp_path / "tiny.onnx"), tmp_path / "run", metric="row-norm"
    )
    assert (tiny.KEPT, 1e-2) == (found.kept, found.tolerance)
    assert {"metric": "row-norm", "tolerance": 1e-2} == found.fingerprint["comparator"]
    assert any("the metric row-norm is a plug-in's" in note for note in found.notes)
    assert (tmp_path / "run" / MIXED_MODEL).is_file()
    assert not (tmp_path / "run" / RUN_SCRIPT).exists()
    steps = next_steps(found, tmp_path / "tiny.onnx")
    assert not any(RUN_SCRIPT in each for step in steps for each in step.commands)


def test_a_metric_that_is_not_installed_is_named() -> None:
    """From Python, where no flag has its choices, one line says what may have been meant."""
    with pytest.raises(PluginError, match="no metric 'elementwize'") as error:
        choose_comparator(Options(model=Path("m.onnx"), metric="elementwize"), ["logits"])
    assert "did you mean elementwise?" == error.value.hint


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
