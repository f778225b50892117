"""Samples that do not fit the model are refused before anything runs."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from models import load_text
from precision_bisect.errors import InputError
from precision_bisect.graphs.fp32_outputs import reference_outputs
from precision_bisect.graphs.load import Model
from precision_bisect.judging.inputs.input_check import check_samples


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """Return a model with a float and an integer input."""
    return load_text("(float[n,2] x, int64[1] k) => (float[n,2] y) { y = Exp(x) }", tmp_path)


GOOD: dict[str, NDArray[Any]] = {"x": np.ones((3, 2), np.float32), "k": np.ones(1, np.int64)}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"x": np.ones((3, 3), np.float32)}, "(3, 3), but the model wants (n, 2)"),
        ({"x": np.ones(2, np.float32)}, "(2), but the model wants (n, 2)"),
        ({"x": np.ones((3, 2))}, "is float64, but the model wants float32"),
        ({"k": np.ones(1, np.int32)}, "is int32, but the model wants int64"),
        ({"z": np.ones(1)}, "has z, no input of the model"),
    ],
)
def test_unfit_samples(model: Model, changed: dict[str, NDArray[Any]], expected: str) -> None:
    """Wrong shapes, types, values and names are named, with the sample's number."""
    with pytest.raises(InputError) as caught:
        check_samples(model, [GOOD, {**GOOD, **changed}])
    line = caught.value.one_line()
    assert expected in line
    assert "sample 1" in line
    assert caught.value.hint


def test_missing_inputs(model: Model) -> None:
    """A missing input is named, and so are the model's inputs."""
    with pytest.raises(InputError, match="lacks k") as caught:
        check_samples(model, [{"x": GOOD["x"]}])
    assert "x, k" in caught.value.hint


def test_samples_come_back_ready_to_run(model: Model) -> None:
    """Order, memory layout and byte order are put right."""
    odd = {"k": GOOD["k"].astype(">i8"), "x": np.ones((2, 3), ">f4").T}
    (sample,) = check_samples(model, [odd])
    assert list(sample) == ["x", "k"]
    assert all(a.flags.c_contiguous and a.dtype.isnative for a in sample.values())
    reference_outputs(model, [sample], threads=1)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_inputs_are_fed_as_the_fp32_values_they_hold(tmp_path: Path, kind: str) -> None:
    """16-bit inputs are asked for in their own type, checked, and widened."""
    model = load_text(f"({kind}[2] x) => ({kind}[2] y) {{ y = Exp(x) }}", tmp_path)
    values = np.array([0.5, np.inf], np.float32)
    dtype = np.float16 if kind == "float16" else ml_dtypes.bfloat16
    (sample,) = check_samples(model, [{"x": values[[0, 0]].astype(dtype)}])
    assert sample["x"].dtype == np.float32
    (sample,) = check_samples(model, [{"x": values.astype(dtype)}])
    np.testing.assert_array_equal(sample["x"], values)
    with pytest.raises(InputError, match=f"wants {kind}"):
        check_samples(model, [{"x": values.astype(np.float64)}])


def test_bf16_inputs_may_come_in_fp32(tmp_path: Path) -> None:
    """numpy's files hold no BF16, so samples in FP32 are rounded to it."""
    model = load_text("(bfloat16[2] x) => (bfloat16[2] y) { y = Exp(x) }", tmp_path)
    (sample,) = check_samples(model, [{"x": np.array([1 + 2**-9, 3], np.float32)}])
    np.testing.assert_array_equal(np.array([1, 3], np.float32), sample["x"])
    with pytest.raises(InputError, match="float64") as caught:
        check_samples(model, [{"x": np.zeros(2)}])
    assert "convert it with .astype('float32')" == caught.value.hint


def test_text_inputs(tmp_path: Path) -> None:
    """Text is taken as numpy holds it."""
    model = load_text("(string[2] s) => (bool[2] y) { y = Equal(s, s) }", tmp_path, opset=19)
    (sample,) = check_samples(model, [{"s": np.array(["a", "bc"])}])
    (outputs,) = reference_outputs(model, [sample], threads=1)
    assert outputs["y"].all()


@pytest.mark.parametrize("sample", [None, "x", 5, [("x", 1)]])
def test_a_sample_that_is_no_dict_is_told(tmp_path: Path, sample: object) -> None:
    """Python callers may give anything."""
    model = load_text("(float[2, 3] x) => (float[2, 3] y) { y = Abs(x) }", tmp_path)
    with pytest.raises(InputError, match="sample 0 is no dict"):
        check_samples(model, [sample])  # type: ignore[list-item]
