"""Synthetic inputs: they fit names, types, shapes and tables, and the seed decides them."""

from pathlib import Path

import numpy as np
import pytest

from models import load_text, normal, parse, save, with_weights
from precision_bisect.errors import InputError, UsageError
from precision_bisect.inputs.input_check import check_samples
from precision_bisect.inputs.synthetic import synthetic_samples
from precision_bisect.model.fp32_outputs import reference_outputs
from precision_bisect.model.load import load_model
from precision_bisect.settings.reading import parse_shapes


def test_token_ids_stay_below_the_rows_of_their_table(tmp_path: Path) -> None:
    """Ids that reach an embedding through casts and reshapes stay below its rows."""
    body = """(int64[1,64] input_ids, int64[1,64] other, int64[1,64] position_ids)
        => (float[1,64,4] a, float[1,64,4] b, float[1,64,4] c) {
        i = Cast<to = 6>(input_ids) r = Reshape(i, shape) a = Gather(t, r)
        k = Constant<value = float[2,4] {1, 2, 3, 4, 5, 6, 7, 8}>() b = Gather(k, other)
        c = Gather(k, position_ids) }"""
    proto = with_weights(parse(body), {"t": normal(3, 4), "shape": np.array([1, 64])})
    model = load_model(save(proto, tmp_path))
    samples = check_samples(model, synthetic_samples(model, {}, 4, seed=0))
    for name, rows in (("input_ids", 3), ("other", 2), ("position_ids", 2)):
        values = np.concatenate([sample[name] for sample in samples])
        assert sorted(set(values.ravel().tolist())) == list(range(rows))
    reference_outputs(model, samples, threads=1)


def test_masks_types_and_positions(tmp_path: Path) -> None:
    """Masks are ones with padding in later samples, types zeros, positions count."""
    model = load_text(
        """(int64[1,8] attention_mask, bool[8] flag, int32[1,8] token_type_ids,
            int64[1,8] position_ids) => (int64[1,8] y) {
            y = Add(attention_mask, position_ids) }""",
        tmp_path,
    )
    first, _, third, _ = synthetic_samples(model, {}, 4, seed=0)
    assert first["attention_mask"].min() == 1
    assert third["attention_mask"].ravel().tolist() == [1] * 6 + [0] * 2
    assert first["flag"].all()
    assert not first["token_type_ids"].any()
    assert first["position_ids"].ravel().tolist() == list(range(8))


def test_the_seed_decides(tmp_path: Path) -> None:
    """The same seed gives the same samples, another one others."""
    model = load_text("(float[2,3] x) => (float[2,3] y) { y = Exp(x) }", tmp_path)
    one, same, other = (synthetic_samples(model, {}, 2, seed)[1]["x"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("kind", ["float16", "float", "double", "int8", "uint8", "int32", "bool"])
def test_types_fit(tmp_path: Path, kind: str) -> None:
    """Made-up arrays have the type of the input."""
    model = load_text(f"({kind}[4] x) => ({kind}[4] y) {{ y = Identity(x) }}", tmp_path)
    (sample,) = synthetic_samples(model, {}, 1, seed=0)
    assert sample["x"].dtype.name == model.inputs[0].dtype
    (checked,) = check_samples(model, [sample])
    reference_outputs(model, [checked], threads=1)


def test_dynamic_shapes_need_an_answer(tmp_path: Path) -> None:
    """A dynamic batch is 1, other dynamic dimensions have to be given, and must fit."""
    model = load_text("(float[n, 3, h] x) => (float[n, 3, h] y) { y = Exp(x) }", tmp_path)
    with pytest.raises(InputError, match="dynamic shape") as caught:
        synthetic_samples(model, {}, 1, seed=0)
    assert "x:nx3xh" not in caught.value.hint
    assert synthetic_samples(model, parse_shapes(["x:2x3x5"]), 1, 0)[0]["x"].shape == (2, 3, 5)
    with pytest.raises(InputError, match="but the model wants"):
        synthetic_samples(model, {"x": (2, 4, 5)}, 1, 0)


def test_unmakeable_inputs_are_refused(tmp_path: Path) -> None:
    """Text, sequences, bfloat16 and arrays beyond any memory are not made up."""
    for kind in ("string[2]", "bfloat16[2]", "seq(float[2])", "float[1000000, 1000000]"):
        model = load_text(f"({kind} x) => ({kind} y) {{ y = Identity(x) }}", tmp_path)
        with pytest.raises(InputError) as caught:
            synthetic_samples(model, {}, 1, 0)
        assert caught.value.hint


@pytest.mark.parametrize("text", ["x", "x:1xA", "x:0", "x:-1", ":1", "x:1x", "x:1.5"])
def test_bad_shapes(text: str) -> None:
    """Shapes that cannot be read are refused with the right form."""
    with pytest.raises(UsageError, match="cannot read the shape"):
        parse_shapes([text])


def test_shapes_of_names_with_colons() -> None:
    """Names may hold colons, and several shapes may come in one text or in several."""
    found = parse_shapes(["in:0:1x2,s:", "b:3"])
    assert found == {"in:0": (1, 2), "s": (), "b": (3,)}
