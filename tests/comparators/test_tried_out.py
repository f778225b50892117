"""A judge that cannot fail, or that gives a score, is told before the search, and no other is."""

import shlex
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
import precision_bisect
from precision_bisect.commandline.main import main
from precision_bisect.errors import PluginError, UsageError
from precision_bisect.judging.comparators.choose_comparator import choose_comparator
from precision_bisect.judging.comparators.script import Guarded, ScriptComparator
from precision_bisect.judging.comparators.tried_out import try_out
from precision_bisect.options import Options
from precision_bisect.plugins import COMPARATORS, installed
from precision_bisect.protocols import Judgement, Sample
from precision_bisect.trial import Verdict

LOGITS = [models.normal(4, 10), models.normal(4, 10, seed=1)]
KINDS: Mapping[str, list[Sample]] = {
    "two samples": [{"y": each} for each in LOGITS],
    "one sample": [{"y": LOGITS[0]}],
    "a scalar": [{"y": np.array(0.25, np.float32)}],
    "one value": [{"y": np.full((1, 8), 3.0, np.float32)}],
    "zeros": [{"y": np.zeros((2, 8), np.float32)}],
    "half precision": [{"y": np.array([6e4, -6e4, 1.0], np.float16)}],
    "an image": [{"y": np.arange(256, dtype=np.uint8).reshape(16, 16)}],
    "one class": [{"y": np.full(4, 7, np.int64)}],
    "truth values": [{"y": np.array([True, False, False])}],
    "other shapes": [{"y": LOGITS[0]}, {"y": LOGITS[1][:2]}],
    "a second output": [{"y": LOGITS[0], "z": np.zeros(3, np.int32)}],
}
"""References of every kind, each with an output y."""
DIFFERENCE = """
pairs = [(np.float64(o['y']), np.float64(r['y'])) for o, r in zip(outputs, reference)]
worst = max(float(np.abs(got - want).max()) for got, want in pairs)
"""
SAME = "pairs = [(np.float64(r['y']), np.float64(r['y'])) for r in reference]\n"
COSINE = """
a, b = (np.concatenate([np.ravel(s['y']) for s in each]) for each in (outputs, reference))
cosine = float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-12))
"""
PSNR = """
a, b = (np.concatenate([np.ravel(s['y']) for s in each]) for each in (outputs, reference))
with np.errstate(divide='ignore'):
    psnr = float(20 * np.log10(np.abs(b).max()) - 10 * np.log10(np.mean((a - b) ** 2)))
"""
ARGMAX = """
a, b = (np.concatenate([s['y'].argmax(-1).ravel() for s in each]) for each in (outputs, reference))
"""


def check(folder: Path, body: str, tol: float | None = 0.01) -> ScriptComparator:
    """Return the comparator of a check with this body."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    path = folder / "metric.py"
    path.write_text(f"import math\nimport numpy as np\n\ndef f(outputs, reference):\n{lines}")
    return ScriptComparator(path, "f", tol)


def refused(comparator: Any, reference: Sequence[Sample]) -> str:
    """Return what is said of a comparator, in one line."""
    with pytest.raises(UsageError) as error:
        try_out(comparator, reference, "--check metric.py:f")
    assert 2 == error.value.exit_code
    assert error.value.hint
    return error.value.one_line()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "body",
    [
        "return 0",
        "return 0.0",
        "return 0.005",
        f"{SAME}return max(float(np.abs(a - b).max()) for a, b in pairs)",
        "outputs.clear()\nreference.clear()\nreturn max((1.0 for o in outputs), default=0.0)",
        "for o, r in zip(outputs, reference):\n    o.update(r)\n" + f"{DIFFERENCE}return worst",
        "for o, r in zip(outputs, reference):\n    r['y'][...] = o['y']\n"
        + f"{DIFFERENCE}return worst",
        "outputs[:] = reference\n" + f"{DIFFERENCE}return worst",
    ],
)
def test_what_never_compares_is_refused(tmp_path: Path, kind: str, body: str) -> None:
    """Whatever the outputs are, a check that has one figure for all of them is named as such."""
    assert "does not compare" in refused(check(tmp_path, body), KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", ["return True", "return all(o is not None for o in outputs)"])
def test_so_are_those_that_only_say_true(tmp_path: Path, kind: str, body: str) -> None:
    """Without a figure it is the same."""
    assert "does not compare" in refused(check(tmp_path, body, tol=None), KINDS[kind])


def test_what_divides_by_the_outputs_is_refused(tmp_path: Path) -> None:
    """NaN for zeros is no failure: nothing else makes it fail."""
    body = (
        f"{SAME}a, b = (np.concatenate([p[i].ravel() for p in pairs]) for i in (0, 1))\n"
        "size = np.linalg.norm(np.concatenate([o['y'].ravel() for o in outputs]))\n"
        "with np.errstate(invalid='ignore'):\n"
        "    return float(np.linalg.norm(a - b) / np.float64(size))"
    )
    assert "metric.py:f" in refused(check(tmp_path, body), KINDS["two samples"])


@pytest.mark.parametrize(
    ("body", "tol", "hint"),
    [
        (f"{COSINE}return cosine", 0.01, "return 1 - score"),
        (f"{COSINE}return cosine", 1.0, "return 1 - score"),
        (f"{COSINE}return cosine", 0.99, "return 1 - score"),
        (f"{COSINE}return -cosine", 0.01, "return 1 - score"),
        (f"{COSINE}return 100 * cosine", 0.01, "return 100 - score"),
        (f"{COSINE}return -100 * cosine", 0.01, "return 100 - score"),
        (f"{ARGMAX}return float(np.mean(a == b))", 0.02, "return 1 - score"),
        (f"{ARGMAX}return -float(np.mean(a == b))", 0.02, "return 1 - score"),
        (f"{ARGMAX}return int(np.array_equal(a, b))", 0.02, "return 1 - score"),
        (f"{PSNR}return psnr", 30.0, "10 ** (-score / 20)"),
        (f"{PSNR}return -psnr", 0.0, "10 ** (-score / 20)"),
        (f"{ARGMAX}return float(np.mean(a == b)) * 0.93", 0.1, "return 0.93 - score"),
    ],
)
@pytest.mark.parametrize("kind", ["two samples", "one sample"])
def test_a_score_is_told_how_to_become_an_error(
    tmp_path: Path, kind: str, body: str, tol: float, hint: str
) -> None:
    """More for equal outputs than for wrong ones is a score, also with its sign turned."""
    assert hint in refused(check(tmp_path, body, tol), KINDS[kind])


@pytest.mark.parametrize(
    ("body", "tol", "said"),
    [
        (f"{DIFFERENCE}return worst + 0.5", 0.1, "fails the reference itself: 0.5, tolerance 0.1"),
        (f"{DIFFERENCE}return worst", 1e6, "passes whatever is wrong"),
        ("return float('nan')", 0.1, "for outputs equal to the reference"),
        (f"{DIFFERENCE}return worst > 0.1", None, "and passes wrong ones; return True where"),
        ("return False", None, "fails outputs equal to the reference; return True where"),
        ("return math.log10(0)", 0.1, "equal to the reference, for which it has to return 0"),
    ],
)
def test_what_else_cannot_judge_is_told(
    tmp_path: Path, body: str, tol: float | None, said: str
) -> None:
    """A reference that fails, a limit that nothing exceeds, and the opposite each have a line."""
    assert said in refused(check(tmp_path, body, tol), KINDS["two samples"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("body", "tol"),
    [
        (f"{DIFFERENCE}return worst", 1e-2),
        (f"{DIFFERENCE}return worst <= 1e-2", None),
        (f"{DIFFERENCE}return 0.0 if worst < 1e-2 else math.inf", 1e-2),
        (f"{DIFFERENCE}return math.log10(worst + 1e-9) + 2", 0.0),
        (f"{DIFFERENCE}if worst > 0.1: raise ValueError\nreturn worst", 1e-2),
    ],
)
def test_what_compares_is_taken(tmp_path: Path, kind: str, body: str, tol: float | None) -> None:
    """An error of any form is, whatever the outputs are, and nothing is said."""
    try_out(check(tmp_path, body, tol), KINDS[kind], "--check")


@pytest.mark.parametrize("kind", ["two samples", "one sample"])
@pytest.mark.parametrize(
    ("body", "tol"),
    [
        (f"{ARGMAX}return float(np.mean(a != b))", 0.01),
        (
            f"{ARGMAX}labels = np.append(b[:-1], 3)\n"
            "return float(np.mean(a != labels)) - float(np.mean(b != labels))",
            0.01,
        ),
        (f"{ARGMAX}return 0.9 - float(np.mean(a == b))", 0.0),
        (f"{COSINE}return 1 - cosine", 0.003),
        (f"{PSNR}return 10 ** (-psnr / 20)", 0.03),
        (f"{PSNR}return 30 - psnr", 0.0),
        ("return float(abs(outputs[0]['y'].mean() - reference[0]['y'].mean()))", 1e-3),
        (
            "a, b = (np.sort(s[0]['y'].ravel()) for s in (outputs, reference))\n"
            "return float(np.abs(a - b).max())",
            1e-3,
        ),
        ("return float(np.mean((outputs[0]['y'] > 5) != (reference[0]['y'] > 5)))", 0.01),
        (f"{DIFFERENCE}return 0.1 + worst", 0.15),
    ],
)
def test_metrics_of_every_kind_are_taken(tmp_path: Path, kind: str, body: str, tol: float) -> None:
    """Labels, quality, no order, a threshold that zeros meet: each fails for something wrong."""
    try_out(check(tmp_path, body, tol), KINDS[kind], "--check")


@pytest.mark.parametrize("metric", installed(COMPARATORS))
@pytest.mark.parametrize("kind", KINDS)
def test_installed_metrics_are_taken(metric: str, kind: str) -> None:
    """Those that come along compare: of limits that are too wide others speak."""
    options = Options(model=Path("m.onnx"), metric=metric, tol=0.4)
    try_out(choose_comparator(options, list(KINDS[kind][0])), KINDS[kind], "--metric")


@pytest.mark.parametrize("row", [[3, 1], [0.5, -2], [-1, -4]])
def test_labels_of_one_row_can_be_wrong(tmp_path: Path, row: list[float]) -> None:
    """What is far from the outputs has another largest value, even where zeros have the same."""
    reference = [{"y": np.array([row], np.float32)}]
    try_out(check(tmp_path, f"{ARGMAX}return float(np.mean(a != b))"), reference, "--check")


def test_a_reference_that_is_not_finite_is_for_others(tmp_path: Path) -> None:
    """No comparator is to blame for NaN of the model's own."""
    try_out(check(tmp_path, "return 0"), [{"y": np.array([np.nan], np.float32)}], "--check")


class Sorting:
    """A metric of others that sorts and empties what it is given."""

    tolerance = 0.1

    def settings(self) -> dict[str, Any]:
        """Say nothing."""
        return {"metric": "sorting"}

    def judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        """Give the largest difference of sorted outputs."""
        error = 0.0
        while outputs:
            pair = [each.pop()["y"] for each in (outputs, reference)]  # type: ignore[attr-defined]
            for array in pair:
                array.reshape(-1).sort()
            error = max(error, float(np.abs(pair[0] - pair[1]).max()))
        verdict = Verdict.PASS if error <= self.tolerance else Verdict.FAIL
        return Judgement(verdict=verdict, error=error)


class Blind(Sorting):
    """A metric of others that cannot fail."""

    def judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        """Compare the reference with itself."""
        return super().judge([*reference], [*reference])


class Scoring(Sorting):
    """A metric of others that gives a score."""

    def judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        """Give 1 for equal outputs."""
        found = super().judge(outputs, reference)
        error = 1.0 / (1.0 + (found.error or 0.0))
        verdict = Verdict.PASS if error <= self.tolerance else Verdict.FAIL
        return Judgement(verdict=verdict, error=error)


class Raising(Sorting):
    """A metric of others that has a fault."""

    def judge(self, outputs: Sequence[Sample], reference: Sequence[Sample]) -> Judgement:
        """Fail."""
        return dict[str, Judgement]()["labels"]


def install(monkeypatch: pytest.MonkeyPatch, made: type) -> None:
    """Have `--metric mine` be this class."""
    monkeypatch.setattr(f"{__name__}.mine", lambda *_: made(), raising=False)
    entry = EntryPoint("mine", f"{__name__}:mine", COMPARATORS)
    monkeypatch.setattr(
        "precision_bisect.plugins.installed",
        lambda group: {"mine": entry} if group == COMPARATORS else installed(group),
    )


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (Blind, "metric mine does not compare"),
        (Scoring, "metric mine gives a score: 1 for outputs equal to the reference"),
        (Raising, "the metric mine failed: 'labels'"),
    ],
)
def test_metrics_of_others_are_tried_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: type, said: str
) -> None:
    """What is installed is judged like a script, before anything is written."""
    install(monkeypatch, made)
    model = models.save(models.parse(models.CANCELLATION), tmp_path)
    with pytest.raises((UsageError, PluginError)) as error:
        precision_bisect.find(model, metric="mine", out=tmp_path / "run")
    assert error.value.one_line().startswith(said)
    assert not (tmp_path / "run").exists()


def test_a_metric_of_others_changes_only_its_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists, dicts and arrays of the run stay as they are."""
    install(monkeypatch, Sorting)
    comparator = choose_comparator(Options(model=Path("m.onnx"), metric="mine"), ["y"])
    assert isinstance(comparator, Guarded)
    reference = KINDS["two samples"]
    outputs = [{"y": each + np.float32(1)} for each in LOGITS]
    before = [str(outputs), str(reference)]
    assert comparator.judge(outputs, reference).verdict is Verdict.FAIL
    assert before == [str(outputs), str(reference)]
    assert (0.1, {"metric": "sorting"}) == (comparator.tolerance, comparator.settings())
    try_out(comparator, reference, "--metric mine")


@pytest.mark.parametrize("body", ["return 0.0", f"{COSINE}return cosine"])
@pytest.mark.parametrize("command", ["", "curve", "explain"])
def test_every_command_tells_it_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, body: str
) -> None:
    """Exit code 2, one line, no trial and no run folder."""
    model = models.save(models.parse(models.CANCELLATION), tmp_path)
    check(tmp_path, body)
    np.savez(tmp_path / "inputs.npz", x=np.linspace(1, 2, 4, dtype=np.float32))
    out = [] if command == "explain" else ["--out", str(tmp_path / "run")]
    words = shlex.split(f"{command} {model} --tol 0.01 --inputs {tmp_path / 'inputs.npz'}")
    assert 2 == main([*words, *out, "--check", f"{tmp_path / 'metric.py'}:f"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("precision-bisect: --check metric.py:f ")
    assert not (tmp_path / "run").exists()


def test_samples_that_are_held_out_are_not_asked(tmp_path: Path) -> None:
    """The judge is tried out on what it will judge: the samples that judge."""
    model = models.save(models.parse(models.CANCELLATION), tmp_path)
    body = f"assert len(outputs) == 2 or math.nan\n{DIFFERENCE}return worst + (len(outputs) > 2)"
    check(tmp_path, body)
    feeds = [{"x": np.linspace(1, n, 4, dtype=np.float32)} for n in (2, 3, 4)]
    found = precision_bisect.find(
        model,
        inputs=feeds,
        holdout=1,
        out=tmp_path / "run",
        check=f"{tmp_path / 'metric.py'}:f",
        tol=0.01,
        backend="emulated",
    )
    assert found.kept
