"""Dynamic shapes: what is given, what samples need, and what cannot work."""

import pytest

from precision_bisect.backends.tensorrt.profiles import ShapeRange, shape_ranges
from precision_bisect.errors import UsageError
from precision_bisect.graphs.types import TensorSpec
from precision_bisect.settings.engine_settings import EngineSettings

IMAGE = TensorSpec(name="image", dtype="float32", shape=("batch", 3, None, 8))
SCALE = TensorSpec(name="scale", dtype="float32", shape=(1,))
UNRANKED = TensorSpec(name="any", dtype="float32", shape=None)


def test_static_inputs_need_no_range() -> None:
    """A model without dynamic sizes is built as it stands."""
    assert {} == shape_ranges([SCALE], EngineSettings(), {"scale": [(1,)]})


@pytest.mark.parametrize("spec", [IMAGE, UNRANKED])
def test_samples_of_one_shape_fix_it(spec: TensorSpec) -> None:
    """Without flags the engine is built for the shape that the samples have."""
    shape = (2, 3, 16, 8)
    fixed = ShapeRange(least=shape, best=shape, most=shape)
    assert {spec.name: fixed} == shape_ranges([spec], EngineSettings(), {spec.name: [shape]})


def test_samples_of_several_shapes_span_a_range() -> None:
    """The range holds every sample, and the largest sizes are tuned for."""
    spanned = ShapeRange(least=(1, 3, 8, 8), best=(4, 3, 16, 8), most=(4, 3, 16, 8))
    samples = {"image": [(4, 3, 8, 8), (1, 3, 16, 8)]}
    assert {"image": spanned} == shape_ranges([IMAGE, SCALE], EngineSettings(), samples)


def test_values_that_give_a_shape_are_sizes() -> None:
    """They may be anything, and tuned for is a sample as it is; flags win over samples."""
    target = TensorSpec(name="target", dtype="int64", shape=(2,))
    samples = {"target": [(-1, 4), (4, 6), (6, 4)]}
    values = frozenset(["target"])
    assert {"target": ShapeRange(least=(-1, 4), best=(4, 6), most=(6, 6))} == shape_ranges(
        [target], EngineSettings(), samples, values
    )
    settings = EngineSettings(opt_shapes={"target": (6, 4)}, min_shapes={"target": (4, 4)})
    assert {"target": ShapeRange(least=(4, 4), best=(6, 4), most=(6, 4))} == shape_ranges(
        [target], settings, {}, values
    )
    with pytest.raises(UsageError, match="1x6x4 is no shape of 'target'"):
        shape_ranges([target], EngineSettings(opt_shapes={"target": (1, 6, 4)}), {}, values)


def test_given_shapes_stand() -> None:
    """Flags win over samples; what is not given of the three is the tuned shape."""
    best, most = (2, 3, 8, 8), (4, 3, 8, 8)
    settings = EngineSettings(opt_shapes={"image": best}, max_shapes={"image": most})
    given = ShapeRange(least=best, best=best, most=most)
    assert {"image": given} == shape_ranges([IMAGE], settings, {"image": [(3, 3, 8, 8)]})


@pytest.mark.parametrize(
    ("settings", "samples", "said"),
    [
        (EngineSettings(), {}, "has dynamic sizes, and nothing says which"),
        (EngineSettings(), {"image": [(1, 3, 8, 8), (8,)]}, "has dynamic sizes, and nothing"),
        (EngineSettings(opt_shapes={"picture": (1,)}), {}, "names 'picture', which is no input"),
        (
            EngineSettings(opt_shapes={"scale": (1,)}, min_shapes={"image": (1, 3, 8, 8)}),
            {},
            "gives 'image', but not --opt-shapes",
        ),
        (
            EngineSettings(opt_shapes={"image": (1, 4, 8, 8)}),
            {},
            "1x4x8x8 is no shape of 'image', which the model gives as batchx3x?x8",
        ),
        (EngineSettings(opt_shapes={"image": (1, 3)}), {}, "1x3 is no shape of 'image'"),
        (
            EngineSettings(opt_shapes={"image": (1, 3, 8, 8)}, min_shapes={"image": (2, 3, 8, 8)}),
            {},
            "are out of order: 2x3x8x8 to 1x3x8x8 to 1x3x8x8",
        ),
        (
            EngineSettings(opt_shapes={"image": (1, 3, 8, 8)}),
            {"image": [(2, 3, 8, 8)]},
            "has shape 2x3x8x8, outside 1x3x8x8 to 1x3x8x8",
        ),
    ],
)
def test_what_cannot_work_is_one_line(
    settings: EngineSettings, samples: dict[str, list[tuple[int, ...]]], said: str
) -> None:
    """Shapes that contradict the model, the samples or one another are refused before a build."""
    with pytest.raises(UsageError) as caught:
        shape_ranges([IMAGE, SCALE], settings, samples)
    assert said in caught.value.one_line()
