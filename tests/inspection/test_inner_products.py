"""Recurrences in real engines of TensorRT-RTX: their products decide, and nothing else does."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from effort import nightly
from inspection.engines import DEMOTED, HONOURED, UNSEEN
from inspection.judged import words
from models import keeping, parse, save, with_weights
from precision_bisect.backends.inspection.engine_layers import (
    EngineLayer,
    EngineTensor,
    parse_layers,
)
from precision_bisect.backends.inspection.honoured import judge_layers
from precision_bisect.backends.tensorrt.build import Recipe, build
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.profiles import ShapeRange
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.precisions import Pair
from precision_bisect.settings.engine_settings import EngineSettings

FP16 = Pair(low="fp16", high="fp32")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
WIDTH, HIDDEN, BATCH = 32, 16, 2


def recurrent(
    folder: Path, op: str, *, steps: int | str = 3, ways: int = 1, bias: bool = True
) -> Model:
    """Return a model of two recurrences in a row, `k` and `l`, with a product on each side."""
    direction = "bidirectional" if ways == 2 else "forward"
    settings = f'hidden_size = {HIDDEN}, direction = "{direction}"'
    biases = [", b", ", c"] if bias else ["", ""]
    body = (
        f"(float[{steps}, {BATCH}, {WIDTH}] x) => (float[s, n, {WIDTH}] y) {{"
        f" p = MatMul(x, u) t = Tanh(p)"
        f" [k] d = {op}<{settings}>(t, w, r{biases[0]})"
        f" e = Transpose<perm = [0, 2, 1, 3]>(d) f = Reshape(e, flat)"
        f" [l] g = {op}<{settings}>(f, v, q{biases[1]})"
        f" h = Transpose<perm = [0, 2, 1, 3]>(g) i = Reshape(h, flat) y = MatMul(i, o) }}"
    )
    rows, back = GATES[op] * HIDDEN, ways * HIDDEN
    shapes = {
        "u": (WIDTH, WIDTH), "w": (ways, rows, WIDTH), "r": (ways, rows, HIDDEN),
        "v": (ways, rows, back), "q": (ways, rows, HIDDEN), "o": (back, WIDTH),
        "b": (ways, 2 * rows), "c": (ways, 2 * rows),
    }  # fmt: skip
    rng = np.random.default_rng(0)
    weights = {
        name: rng.normal(0, 0.1, shape).astype(np.float32)
        for name, shape in shapes.items()
        if bias or name not in "bc"
    }
    flat = {"flat": np.array([0, 0, -1])}
    return load_model(save(with_weights(parse(body), {**weights, **flat}), folder))


def engine_of(
    rtx: Flavour, model: Model, folder: Path, kept: Sequence[str]
) -> Sequence[EngineLayer]:
    """Return the layers of the engine of the plan that keeps these, for 3 to 12 steps."""
    typed = TypedWriter(model, FP16).write(keeping(model, *kept))
    save_typed(typed, folder / "typed.onnx")
    least, most = (3, BATCH, WIDTH), (12, BATCH, WIDTH)
    dynamic = not isinstance(model.inputs[0].shape and model.inputs[0].shape[0], int)
    ranges = {"x": ShapeRange(least=least, best=most, most=most)} if dynamic else {}
    settings = EngineSettings(compute_capability="8.6")
    return parse_layers(
        build(rtx, folder / "typed.onnx", Recipe(settings=settings, ranges=ranges)).layers
    )


def judged(model: Model, kept: Sequence[str], layers: Sequence[EngineLayer]) -> dict[str, str]:
    """Return the verdicts on the kept layers, as if the engine were built for them."""
    plan = keeping(model, *kept)
    return words(judge_layers(model, plan, TypedWriter(model, FP16).write(plan), layers, FP16))


def lowered(layer: EngineLayer) -> EngineLayer:
    """Return the engine layer with FP16 in the place of FP32."""

    def low(tensors: Sequence[EngineTensor]) -> tuple[EngineTensor, ...]:
        return tuple(replace(t, dtype={"fp32": "fp16"}.get(t.dtype, t.dtype)) for t in tensors)

    return replace(
        layer,
        inputs=low(layer.inputs),
        outputs=low(layer.outputs),
        constants=low(layer.constants),
    )


@pytest.mark.parametrize("kept", ["k", *nightly("kl")])
@pytest.mark.parametrize(
    "made",
    [
        lambda folder, op: recurrent(folder, op),
        lambda folder, op: recurrent(folder, op, steps="n"),
        *nightly(
            lambda folder, op: recurrent(folder, op, bias=False),
            lambda folder, op: recurrent(folder, op, ways=2),
            lambda folder, op: recurrent(folder, op, steps=100),
        ),
    ],
    ids=["unrolled", "any length", "no bias", "both ways", "a loop"],
)
@pytest.mark.parametrize("op", GATES)
def test_a_kept_recurrence_is_seen(
    rtx: Flavour, tmp_path: Path, op: str, made: Callable[[Path, str], Model], kept: str
) -> None:
    """It is honoured beside a low one, demoted where its products are low, unseen without them."""
    model = made(tmp_path, op)
    layers = engine_of(rtx, model, tmp_path, kept)
    assert dict.fromkeys(kept, HONOURED) == judged(model, kept, layers)
    listed = [any(name in layer.nodes for name in kept) for layer in layers]
    turned = [each if own else lowered(each) for own, each in zip(listed, layers, strict=True)]
    assert dict.fromkeys(kept, DEMOTED) == judged(model, kept, turned)
    parts = [
        each
        for each in layers
        if each.kind != "gemm" and "Fc" not in each.name and not each.name.startswith("__fc")
    ]
    assert dict.fromkeys(kept, UNSEEN) == judged(model, kept, parts)


@pytest.mark.parametrize("op", GATES)
def test_a_low_engine_is_found_out(rtx: Flavour, tmp_path: Path, op: str) -> None:
    """An engine of the plan that keeps nothing does not pass for one that keeps both."""
    model = recurrent(tmp_path, op)
    found = judged(model, "kl", engine_of(rtx, model, tmp_path, ""))
    assert {"k": DEMOTED, "l": DEMOTED} == found


def test_all_weights_must_be_seen(rtx: Flavour, tmp_path: Path) -> None:
    """Where the products with the state are missing, those with the input prove nothing."""
    model = recurrent(tmp_path, "LSTM")
    layers = engine_of(rtx, model, tmp_path, "k")
    some = [
        each
        for each in layers
        if each.kind != "gemm" or all(c.elements != 64 * HIDDEN for c in each.constants)
    ]
    assert len(some) < len(layers)
    assert {"k": UNSEEN} == judged(model, "k", some)
