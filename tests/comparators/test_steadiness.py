"""A model that is random by itself is told so, with the node, before anything is judged by it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
import precision_bisect
from precision_bisect.errors import ModelError
from precision_bisect.judging.comparators.steadiness import RUNS
from precision_bisect.runs.monitoring.events import Event, Warned
from precision_bisect.runs.results.result import Result

FEED = {"x": np.linspace(0.1, 0.9, 8, dtype=np.float32)}
HEAD = "(float[8] x) => (float[8] y) <float half = {0.5}, bool on = {1}, bool off = {0}>"
DRAWN: dict[str, tuple[str, str]] = {
    "dropout": (f"{HEAD} {{ [mine] d = Dropout(x, half, on) y = Exp(d) }}", "Dropout in training"),
    "dropout without ratio": (
        f"{HEAD} {{ [mine] d = Dropout(x, , on) y = Exp(d) }}",
        "Dropout in",
    ),
    "a training mode that is an input": (
        "(float[8] x, bool train) => (float[8] y) <float half = {0.5}>"
        " { [mine] d = Dropout(x, half, train) y = Exp(d) }",
        "Dropout in training mode",
    ),
    "normal": (f"{HEAD} {{ [mine] n = RandomNormal<shape=[8]>() y = Add(x, n) }}", "RandomNormal"),
    "like, with a seed": (
        f"{HEAD} {{ [mine] n = RandomNormalLike<seed=3.0>(x) y = Add(x, n) }}",
        "RandomNormalLike",
    ),
    "uniform": (
        f"{HEAD} {{ [mine] n = RandomUniform<shape=[8]>() y = Add(x, n) }}",
        "RandomUniform",
    ),
    "bernoulli": (f"{HEAD} {{ [mine] b = Bernoulli(x) y = Mul(x, b) }}", "Bernoulli"),
    "multinomial": (
        f"{HEAD} {{ a = Constant<value_ints=[1, 8]>() r = Reshape(x, a)"
        " [mine] m = Multinomial<sample_size=8>(r) c = Cast<to=1>(m) s = Squeeze(c)"
        " y = Add(x, s) }",
        "Multinomial",
    ),
    "in a branch": (
        f"{HEAD} {{ e = Exp(x) s = ReduceMax<keepdims=0>(x) c = Less(s, half) y = If(c) <"
        "then_branch = a () => (float[8] t) { t = Identity(e) },"
        "else_branch = b () => (float[8] u) { [mine] n = RandomNormalLike(e) u = Add(e, n) }> }",
        "RandomNormalLike",
    ),
    "in a function": (
        f"{HEAD} {{ e = Exp(x) y = f.noise(e) }} "
        '<domain: "f", opset_import: ["" : 17]> noise (a) => (b)'
        " { [mine] n = RandomNormalLike(a) b = Add(a, n) }",
        "RandomNormalLike",
    ),
}


def search(
    folder: Path, body: str, samples: Sequence[Any] = (FEED,), **options: Any
) -> tuple[Result, list[str]]:
    """Search a model, and return the result and the warnings."""
    said: list[str] = []

    def observe(event: Event) -> None:
        if isinstance(event, Warned):
            said.append(event.message)

    model = models.save(models.parse(body, domains='"f": 1'), folder)
    asked = {"inputs": samples, "backend": "emulated", "out": folder / "run", **options}
    return precision_bisect.find(model, observer=observe, **asked), said


@pytest.mark.parametrize("kind", DRAWN)
def test_a_random_model_is_refused_by_the_node(tmp_path: Path, kind: str) -> None:
    """Wherever it stands and whatever its seed, the node is named with its operator."""
    body, operator = DRAWN[kind]
    with pytest.raises(
        ModelError, match="is not deterministic: two runs of the same samples differ"
    ) as error:
        search(tmp_path, body, [{**FEED, "train": np.array(True)} if "train)" in body else FEED])
    said = error.value.one_line()
    assert 2 == error.value.exit_code
    assert "mine" in said and operator in said
    way = "in eval mode" if "Dropout" in operator else "make what is drawn an input"
    assert way in error.value.hint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "body",
    [
        f"{HEAD} {{ d = Dropout(x, half, off) y = Exp(d) }}",
        f"{HEAD} {{ d = Dropout(x, half) y = Exp(d) }}",
        f"{HEAD} {{ z = Constant<value_float = 0.0>() d = Dropout(x, z, on) y = Exp(d) }}",
        f"{HEAD} {{ n = RandomNormalLike(x) m = Exp(n) y = Exp(x) }}",
    ],
    ids=["off", "inference", "no share", "for nothing"],
)
def test_what_draws_nothing_is_not_spoken_of(tmp_path: Path, body: str) -> None:
    """A Dropout that is off, or numbers that nobody reads, are like any other model."""
    _, said = search(tmp_path, body)
    assert not any("run to run" in each for each in said)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            f"{HEAD} {{ [mine] n = RandomNormalLike(x) l = Constant<value_float = 1e-6>()"
            " s = Mul(n, l) e = Exp(x) y = Add(e, s) }",
            ", tolerance 0.01: no obstacle",
        ),
        (
            f"{HEAD} {{ [mine] n = RandomUniformLike(x) z = Constant<value_float = 0.0>()"
            " s = Mul(n, z) e = Exp(x) y = Add(e, s) }",
            " may change from run to run; the reference does not",
        ),
    ],
    ids=["little", "nothing"],
)
def test_what_hardly_moves_an_output_is_no_obstacle(tmp_path: Path, body: str, says: str) -> None:
    """Far below the tolerance it is said once, with the node, and the search goes on."""
    result, said = search(tmp_path, body)
    (remark,) = [each for each in said if "mine" in each]
    assert remark.startswith("'mine' (Random")
    assert remark.endswith(says)
    assert remark in result.notes
    assert 0 == result.exit_code


def test_the_tolerance_decides(tmp_path: Path) -> None:
    """The same noise is an obstacle to a limit of its size, and none to a hundred times that."""
    body = (
        f"{HEAD} {{ [mine] n = RandomNormalLike(x) l = Constant<value_float = 1e-3>()"
        " s = Mul(n, l) e = Exp(x) y = Add(e, s) }"
    )
    with pytest.raises(ModelError, match="is not deterministic"):
        search(tmp_path, body, atol=1e-3)
    result, _ = search(tmp_path, body, atol=1.0)
    assert 0 == result.exit_code


def test_only_the_node_that_moves_an_output_is_named(tmp_path: Path) -> None:
    """Of two that draw, the one without effect is not to blame."""
    body = (
        f"{HEAD[:-1].replace('(float[8] y)', '(float[8] y, float[8] w)')}, float no = {{0}}>"
        " { [quiet] q = RandomNormalLike(x) s = Mul(q, no) w = Add(x, s)"
        " [mine] d = Dropout(x, half, on) y = Exp(d) }"
    )
    with pytest.raises(ModelError, match="mine") as error:
        search(tmp_path, body)
    assert "quiet" not in error.value.one_line()


def test_a_dropout_that_drops_little_is_found(tmp_path: Path) -> None:
    """One run of eight elements does not show it in a quarter of the cases, all runs do."""
    body = DRAWN["dropout"][0].replace("{0.5}", "{0.15}")
    with pytest.raises(ModelError, match="mine"):
        search(tmp_path, body)


def test_a_check_without_figures_says_so_too(tmp_path: Path) -> None:
    """Where there is no error, the verdict decides; more samples than runs are run once more."""
    (tmp_path / "check.py").write_text(
        "import numpy as np\n\ndef same(outputs, reference):\n"
        "    return bool(np.allclose(outputs[0]['y'], reference[0]['y'], atol=1e-2))\n"
    )
    with pytest.raises(ModelError, match="of the same samples differ; 'mine'"):
        samples = [{"x": FEED["x"] + np.float32(i)} for i in range(RUNS + 1)]
        search(tmp_path, DRAWN["normal"][0], samples, check=f"{tmp_path / 'check.py'}:same")


def test_a_reference_that_is_given_changes_nothing(tmp_path: Path) -> None:
    """Outputs from elsewhere are fixed, those of the plans are not."""
    np.savez(tmp_path / "x.npz", **FEED)  # type: ignore[arg-type]  # no allow_pickle
    np.savez(tmp_path / "reference.npz", y=FEED["x"])
    with pytest.raises(ModelError, match="is not deterministic"):
        search(
            tmp_path,
            DRAWN["normal"][0],
            inputs=tmp_path / "x.npz",
            reference=tmp_path / "reference.npz",
        )


NORM = (
    "(float[2,2,4] x) => (float[2,2,4] y%s) <float[2] a = {1, 1}, float[2] b = {0, 0},"
    " float[2] c = {0, 0}, float[2] d = {1, 1}>"
    " { e = Exp(x) [mine] y, m, v = BatchNormalization<training_mode = 1>(e, a, b, c, d) }"
)


def test_a_norm_that_goes_on_learning_is_refused(tmp_path: Path) -> None:
    """ONNX Runtime updates the statistics of a norm in training mode where nobody reads them."""
    feed = {"x": models.normal(2, 2, 4)}
    with pytest.raises(ModelError, match="'mine'") as error:
        search(tmp_path, NORM % "", [feed])
    assert "BatchNormalization in training mode" in error.value.message
    assert "export it in eval mode" == error.value.hint


def test_a_norm_that_gives_its_statistics_away_is_named(tmp_path: Path) -> None:
    """Two runs of the reference agree then; what the emulator makes of it is in the notes."""
    feed = {"x": models.normal(2, 2, 4)}
    result, _ = search(tmp_path, NORM % ", float[2] m, float[2] v", [feed])
    remark = "'mine' (BatchNormalization in training mode) may change from run to run"
    assert result.notes[0].startswith(remark)
