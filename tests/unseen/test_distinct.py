"""Samples that are others again count once, wherever they come from and however they lie."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import promises
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import models
import tiny
from effort import examples
from precision_bisect.api import find
from precision_bisect.errors import InputError
from precision_bisect.judging.inputs.copies import CHANGE
from precision_bisect.judging.inputs.distinct import Distinct, distinct
from precision_bisect.judging.inputs.input_files import read_samples
from precision_bisect.protocols import Sample
from precision_bisect.search.sample_sets import divided

ROUNDED = 2.0**-10
"""The largest change of a copy that judges rounding luck."""


def inputs(kind: str, size: int, seed: int) -> Sample:
    """Return a sample of floats, pixels, or numbers that name things."""
    rng = np.random.default_rng((size, seed))
    match kind:
        case "pixels":
            return {"x": rng.integers(0, 256, (1, 3, size)).astype(np.uint8)}
        case "tokens":
            return {"x": rng.integers(0, 30_000, (1, size)), "mask": np.ones((1, size), bool)}
        case "text":
            return {"x": np.array([f"sample {seed}"], object)}
    return {"x": rng.normal(0, 10.0 ** rng.integers(-9, 9), (1, size)).astype(np.float32)}


def changed(sample: Sample, share: float, seed: int) -> Sample:
    """Return the sample with its floats changed by that share."""
    rng = np.random.default_rng(seed)
    return {
        name: (array * (1 + share * rng.normal(0, 1, array.shape))).astype(np.float32)
        if array.dtype.kind == "f"
        else array.copy()
        for name, array in sample.items()
    }


@given(data=st.data())
@examples(40)
def test_what_is_near_is_one_sample(data: st.DataObject) -> None:
    """In any order, by any number, of any size: the first of each stands for all of them."""
    kind = data.draw(st.sampled_from(["floats", "pixels", "tokens", "text"]))
    size = data.draw(st.sampled_from([4, 100, 251, 252, 3000]))
    which = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=20))
    share = data.draw(st.sampled_from([0.0, 1e-7, CHANGE, ROUNDED / 2]))
    samples = [
        changed(inputs(kind, size, seed), share, number) for number, seed in enumerate(which)
    ]
    found = distinct(samples)
    assert [which.index(seed) for seed in which] == [*found.near]
    if share == 0:
        assert [*found.near] == [*found.equal]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.zeros((1, 500), np.float32), np.eye(1, 500, 250, dtype=np.float32)),
        (np.eye(1, 512, dtype=np.float32), np.eye(1, 512, 1, dtype=np.float32)),
        (np.array([[20.0]], np.float32), np.array([[20.1]], np.float32)),
        (np.array([[7, 8]], np.int64), np.array([[7, 9]], np.int64)),
        (np.array([[7, 200]], np.uint8), np.array([[8, 200]], np.uint8)),
        (np.array([[1.0]], np.float32), np.array([[1.0]], np.float64)),
        (np.array([[1.0]], np.float32), np.array([1.0], np.float32)),
        (np.array(["a"], object), np.array(["b"], object)),
    ],
    ids=["zeros", "another place", "one value", "a token", "a byte", "type", "shape", "text"],
)
def test_what_differs_is_new(one: NDArray[Any], other: NDArray[Any]) -> None:
    """A value elsewhere, another token, type or shape make another sample."""
    assert Distinct([0, 1], [0, 1]) == distinct([{"x": one}, {"x": other}])
    same = {"y": np.ones((1, 300), np.float32)}
    assert Distinct([0, 1], [0, 1]) == distinct([{"x": one, **same}, {"x": other, **same}])


def test_a_slow_drift_is_many_samples() -> None:
    """Each sample is compared with the first of its kind, not with its neighbour."""
    x = models.normal(1, 600)
    moved = [{"x": x * np.float32(1 + 1e-3 * step)} for step in range(31)]
    assert 8 < len({*distinct(moved).near}) < 31


@given(near=st.lists(st.integers(0, 9), min_size=2, max_size=40), seed=st.integers(0, 9))
@examples(30)
def test_no_sample_is_on_both_sides(near: list[int], seed: int) -> None:
    """Of those held out none is like one that may choose, and so many distinct ones are."""
    new = Distinct([*range(len(near))], [near.index(each) for each in near])
    count = len({*near})
    for holdout in range(count):
        held_out, pool = divided(new, holdout, seed, each=True)
        assert holdout == len(new.of(held_out))
        assert new.of(held_out).isdisjoint(new.of(pool))
        assert len(pool) == len(new.of(pool))
    with pytest.raises(InputError, match="leaves none to search with"):
        divided(new, count, seed, each=True)


def test_samples_are_held_out_at_random() -> None:
    """Sorted samples say the same of either end: which are held out is the seed's choice."""
    new = Distinct.all_of(60)
    drawn = [divided(new, 20, seed, each=True).held_out for seed in range(30)]
    assert drawn[0] == divided(new, 20, 0, each=True).held_out
    share = np.mean([sum(number >= 40 for number in numbers) for numbers in drawn]) / 20
    assert 0.2 < share < 0.47
    assert 25 < len({*map(tuple, drawn)})


def one_buffer(count: int = 5) -> Iterator[dict[str, NDArray[np.float32]]]:
    """Yield samples that all lie in one array."""
    buffer = np.empty((1, 8), np.float32)
    for sample in tiny.samples(count):
        buffer[:] = sample["x"]
        yield {"x": buffer}


def test_a_loader_may_fill_one_buffer(tmp_path: Path) -> None:
    """Of a script, and of Python's generator, each sample is as it was yielded."""
    script = tmp_path / "load.py"
    script.write_text(
        "import numpy as np\n\n\ndef load_data():\n    buffer = np.empty((1, 8), np.float32)\n"
        "    for number in range(5):\n        buffer[:] = number\n        yield {'x': buffer}\n"
    )
    found = read_samples(script, ["x"])
    assert [0, 1, 2, 3, 4] == [int(sample["x"][0, 0]) for sample in found]
    model = tiny.write_model(tmp_path / "tiny.onnx")
    result = find(model, inputs=one_buffer(), out=tmp_path / "run", backend="emulated")
    assert result.inputs is not None
    assert (5, 5) == (result.inputs.samples, result.inputs.distinct)


@pytest.mark.parametrize(("of", "held", "judged"), [(1, 0, 0), (6, 2, 2), (20, 0, 12)])
def test_a_run_promises_by_distinct_samples(
    tmp_path: Path, of: int, held: int, judged: int
) -> None:
    """Sixty files of few inputs promise no more than these, and the screen says how many."""
    samples = [tiny.samples(of)[number % of] for number in range(60)]
    model = tiny.write_model(tmp_path / "tiny.onnx")
    result = tiny.search(model, tmp_path / "run", inputs=samples, holdout=held)
    assert result.unseen is not None and result.inputs is not None
    assert (60, of) == (result.inputs.samples, result.inputs.distinct)
    assert (judged, of) == (result.unseen.judged, result.unseen.judged + result.unseen.took_part)
    (remark,) = (note for note in result.notes if "distinct" in note)
    assert f"of 60 samples {of} {'is' if of == 1 else 'are'} distinct" in remark


@pytest.mark.parametrize(
    "kind", ["2 inputs 30 times", "2 inputs, changed by 1e-4", "6 inputs, changed by 1e-3"]
)
def test_few_inputs_promise_nothing(kind: str) -> None:
    """Taken for sixty samples they would break their promise."""
    draws = 3
    assert 0 == promises.measured(kind, draws)["promised"]
    assert draws - 1 <= promises.measured(kind, draws, every=True)["broken"]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", promises.KINDS)
def test_promises_are_kept(kind: str) -> None:
    """Of many searches a tenth may break what they promise."""
    draws = 60
    # Three standard deviations of a share of 10%.
    assert promises.measured(kind, draws)["broken"] <= 0.1 * draws + 3 * (0.09 * draws) ** 0.5
