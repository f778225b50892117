"""Small models of what people report of FP16 and INT8, each with samples that show it."""

from collections.abc import Sequence

import numpy as np
import onnx

from models import normal, parse, with_weights
from precision_bisect.protocols import Sample

Reported = tuple[onnx.ModelProto, Sequence[Sample]]

ATTENTION = (
    "(float[1,4] x, float[1,4] m) => (float[1,4] y) <float one = {{1}}, float low = {{{mask}}}> "
    "{{ n = Sub(one, m) a = Mul(n, low) s = Add(x, a) y = Softmax(s) }}"
)
MASKED: list[Sample] = [
    {"x": np.array([[1, 2, 3, 4]], np.float32), "m": np.array([[1, 1, 1, 0]], np.float32)}
]
HALVED = """(float[4,8] x) => (float[4,8] y) <int64[1] last = {{-1}}> {{
    a = Mul(x, x) s = ReduceSum<keepdims = 1>(a, last) {between} r = Sqrt(g) d = Div(x, r)
    y = Tanh(d) }}"""
CHANNELS: list[Sample] = [{"x": normal(8, 32, seed=10 + i)} for i in range(2)]


def attention(mask: float = -1e9) -> Reported:
    """A mask that is multiplied by its constant: 0 times -inf is NaN."""
    return parse(ATTENTION.format(mask=mask)), MASKED


def halved(between: str = "h = Cast<to = 10>(s) g = Cast<to = 1>(h)") -> Reported:
    """A sum of squares that the file itself casts to FP16: it overflows in two of three samples.

    With an Identity of `s` as `g` in `between` it is the FP32 model.
    """
    x = np.random.default_rng(3).normal(0, 1, (3, 4, 8)).astype(np.float32)
    grown = x * np.array([1, 150, 200], np.float32)[:, None, None]
    return parse(HALVED.format(between=between)), [{"x": each} for each in grown]


def large_weight() -> Reported:
    """A weight beyond FP16's range, of values that bring the product back."""
    model = parse("(float[1,4] x) => (float[1,4] y) { h = MatMul(x, w) y = Tanh(h) }")
    weights = {"w": np.eye(4, dtype=np.float32) * np.float32(1e5)}
    return with_weights(model, weights), [{"x": np.full((1, 4), 1e-5, np.float32)}]


def stretched(largest: float = 400.0) -> Reported:
    """Two products between which one channel is so many times as large as the others."""
    model = parse(
        """(float[8,32] x) => (float[8,16] y) {
        [first] a = MatMul(x, w1) [stretch] s = Mul(a, channels) [second] y = MatMul(s, w2) }"""
    )
    channels, back = np.ones(32, np.float32), normal(32, 16, seed=2) / np.float32(6)
    channels[3], back[3] = largest, back[3] / largest
    weights = {"w1": normal(32, 32, seed=1) / np.float32(6), "channels": channels, "w2": back}
    return with_weights(model, weights), CHANNELS


def raw_head(size: float = 640.0) -> Reported:
    """Boxes and scores of a detector in one output, before anything chooses among them."""
    rng = np.random.default_rng(12)
    model = parse(
        f"""(float[1,16,200] x) => (float[1,7,200] y) <float size = {{{size}}}> {{
        [at] a = MatMul(w, x) [place] b = Sigmoid(a) [scale] c = Mul(b, size)
        [scores] s = MatMul(u, x) [class] p = Sigmoid(s) [head] y = Concat<axis = 1>(c, p) }}"""
    )
    weights = {
        "w": rng.normal(0, 0.3, (4, 16)).astype(np.float32),
        "u": rng.normal(-0.5, 0.6, (3, 16)).astype(np.float32),
    }
    return with_weights(model, weights), [
        {"x": rng.normal(0, 1, (1, 16, 200)).astype(np.float32)} for _ in range(4)
    ]


def experts() -> Reported:
    """Each token goes to the expert with the largest score; two of them score nearly the same."""
    rng = np.random.default_rng(8)
    model = parse(
        """(float[64,16] x) => (float[64,8] y) <int64[1] last = {-1}, int64[1] middle = {1}> {
        [route] s = MatMul(x, r) [softmax] p = Softmax<axis = -1>(s)
        [choose] i = ArgMax<axis = -1, keepdims = 0>(p) [expert] w = Gather<axis = 0>(e, i)
        [token] t = Unsqueeze(x, middle) [apply] a = MatMul(t, w)
        [out] y = Squeeze(a, middle) }"""
    )
    router = rng.normal(0, 0.5, (16, 4))
    router[:, 2:] = router[:, :2] * (1 + 2e-4 * rng.normal(0, 1, (16, 2)))
    weights = {
        "r": router.astype(np.float32),
        "e": rng.normal(0, 0.3, (4, 16, 8)).astype(np.float32),
    }
    return with_weights(model, weights), [
        {"x": rng.normal(0, 1, (64, 16)).astype(np.float32)} for _ in range(3)
    ]


def detector(*, first: bool = False) -> Reported:
    """Boxes around points of a grid, behind NonMaxSuppression; with a TopK `first`, two stages.

    The overlap of neighbours is next to the limit: rounding decides which of them stay.
    """
    rng = np.random.default_rng(6)
    stage = (
        "[first] v, i = TopK<axis = 1>(q, most) [again] l = Gather<axis = 1>(c, j)"
        if first
        else "[again] l = Identity(c)"
    )
    best = "[flat] j = Squeeze(i, zero) " if first else ""
    stage = stage.replace("[again]", f"{best}[again]")
    scores = "[few] p = Gather<axis = 1>(q, j)" if first else "[few] p = Identity(q)"
    model = parse(
        f"""(float[1,60,16] x) => (float[n,5] found, int64[n] kinds)
        <int64[1] most = {{50}}, int64[1] zero = {{0}}, float[1] iou = {{0.7}},
        float[1] low = {{0.3}}, int64 two = {{2}}, int64 one = {{1}}, int64[1] last = {{-1}},
        int64[3] each = {{1, 1, -1}}, float half = {{20.0}}> {{
        [regress] o = MatMul(x, w) [shift] d = Add(o, grid)
        [corner] a = Sub(d, half) [other] b = Add(d, half) [boxes] c = Concat<axis = 2>(a, b)
        [classify] s = MatMul(x, u) [sigmoid] e = Sigmoid(s) [squeeze] q = Squeeze(e, last)
        {stage} {scores} [scores] g = Reshape(p, each)
        [suppress] k = NonMaxSuppression(l, g, most, iou, low)
        [row] r = Gather<axis = 1>(k, two) [class] kinds = Gather<axis = 1>(k, one)
        [plain] h = Squeeze(l, zero) [pick] m = Gather<axis = 0>(h, r)
        [line] t = Squeeze(p, zero) [score] y = Gather<axis = 0>(t, r)
        [column] z = Unsqueeze(y, last) [join] found = Concat<axis = 1>(m, z) }}"""
    )
    # A step of 7.06 pixels of 40: an overlap of 0.7, give or take what the features add.
    place = np.arange(60)
    grid = np.stack([7.06 * place, 9.0 + 0 * place], -1)[None]
    weights = {
        "w": rng.normal(0, 0.02, (16, 2)).astype(np.float32),
        "u": rng.normal(0, 0.6, (16, 1)).astype(np.float32),
        "grid": grid.astype(np.float32),
    }
    feeds = [{"x": rng.normal(0, 1, (1, 60, 16)).astype("f4")} for _ in range(4)]
    return with_weights(model, weights), feeds


def log_mel() -> Reported:
    """The logarithm of a power that is clipped at 1e-10, with frames of silence."""
    model = parse(
        """(float[1,20,64] spectrum) => (float[1,20,8] mel) <float least = {1e-10}> {
        [power] p = Mul(spectrum, spectrum) [filters] f = MatMul(p, w) [floor] c = Clip(f, least)
        [log] mel = Log(c) }"""
    )
    rng = np.random.default_rng(1)
    weights = {"w": np.abs(rng.normal(0, 0.05, (64, 8))).astype(np.float32)}
    loud = np.where(np.arange(20) < 5, 0.0, 1e-3)[None, :, None]
    return with_weights(model, weights), [
        {"spectrum": (loud * rng.normal(0, 1, (1, 20, 64))).astype(np.float32)} for _ in range(2)
    ]


def recurrent() -> Reported:
    """An LSTM, whose state is rounded at each of 64 steps."""
    rng = np.random.default_rng(2)
    model = parse(
        """(float[64,1,8] x) => (float[64,1,1,4] y) {
        [cell] h = LSTM<hidden_size = 8>(x, w, r) [head] y = MatMul(h, u) }"""
    )
    weights = {
        "w": rng.normal(0, 0.5, (1, 32, 8)).astype(np.float32),
        "r": rng.normal(0, 1.3, (1, 32, 8)).astype(np.float32),
        "u": rng.normal(0, 0.3, (8, 4)).astype(np.float32),
    }
    return with_weights(model, weights), [
        {"x": rng.normal(0, 1, (64, 1, 8)).astype(np.float32)} for _ in range(2)
    ]


def deep(layers: int = 12, width: int = 16) -> Reported:
    """Products and activations, each of which rounds as much as the others."""
    rng = np.random.default_rng(1)
    body = " ".join(
        f"[product{i}] a{i} = MatMul({f'b{i - 1}' if i else 'x'}, w{i}) "
        f"[activation{i}] b{i} = Tanh(a{i})"
        for i in range(layers)
    )
    shape = f"float[4,{width}]"
    model = parse(f"({shape} x) => ({shape} y) {{ {body} y = Identity(b{layers - 1}) }}")
    scale = 1.5 / np.sqrt(width)
    weights = {
        f"w{i}": rng.normal(0, scale, (width, width)).astype(np.float32) for i in range(layers)
    }
    return with_weights(model, weights), [
        {"x": rng.normal(0, 1, (4, width)).astype(np.float32)} for _ in range(2)
    ]


def unknown() -> Reported:
    """An operator of somebody's own domain, which no engine here knows."""
    model = parse(
        "(float[4] x) => (float[4] y) { s = Exp(x) y = my.ops.MyNorm(s) }", domains='"my.ops": 1'
    )
    return model, [{"x": normal(4)}]
