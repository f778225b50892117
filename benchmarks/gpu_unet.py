"""A diffusion U-Net as that of Stable Diffusion 1.5, with drawn weights; see `gpu_models`.

Inputs are `latent` (1, 4, side, side), `t` (1,) and `context` (1, 77, 768); the output is `noise`.
Norms are spelled out as torch's exporter does below opset 17. What a residual branch adds is a
share of what it finds, so that activations stay of order 1.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gpu_graph import Graph
from onnx import TensorProto

LATENT, CONTEXT, WORDS = 4, 768, 77
"""Channels of the latent and of the context, and rows of the context."""
CHANNELS = (320, 640, 1280, 1280)
BLOCKS = 2
"""ResNet blocks on the way down of each level; one more on the way up."""
GROUPS, HEADS = 32, 8
SHARE = 0.3
"""How large what a residual branch adds is, beside what it finds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UNet:
    """The sizes of a U-Net: `multiplier` scales the widths, `side` is that of the latent."""

    multiplier: float = 1.0
    side: int = 64

    @property
    def widths(self) -> tuple[int, ...]:
        """The channels of each level, multiples of the number of groups."""
        return tuple(max(1, round(each * self.multiplier / GROUPS)) * GROUPS for each in CHANNELS)


def write_unet(path: Path, sizes: UNet, seed: int = 0) -> int:
    """Write a U-Net and its data file; return how many parameters it has."""
    graph = Graph(path, seed)
    _Writer(graph, sizes).write()
    latent = (1, LATENT, sizes.side, sizes.side)
    graph.save(
        [
            ("latent", TensorProto.FLOAT, latent),
            ("t", TensorProto.FLOAT, (1,)),
            ("context", TensorProto.FLOAT, (1, WORDS, CONTEXT)),
        ],
        ("noise", latent),
        opset=14,
    )
    return graph.parameters


@dataclass(frozen=True, slots=True)
class _Map:
    """A tensor of shape (1, channels, side, side)."""

    name: str
    channels: int
    side: int


class _Writer:
    """Adds the nodes of a U-Net to a graph."""

    def __init__(self, graph: Graph, sizes: UNet) -> None:
        self._graph = graph
        self._sizes = sizes
        self._embedded = ""

    def write(self) -> None:
        """Add all of it."""
        widths = self._sizes.widths
        last = len(widths) - 1
        self._embedded = self._time("/time_embedding", widths[0])
        x = self._conv("/conv_in", _Map("latent", LATENT, self._sizes.side), widths[0])
        skips = [x]
        for level, width in enumerate(widths):
            for block in range(BLOCKS):
                x = self._block(f"/down_blocks.{level}", block, x, width, attends=level < last)
                skips.append(x)
            if level < last:
                x = self._conv(f"/down_blocks.{level}/downsamplers.0", x, width, stride=2)
                skips.append(x)
        x = self._block("/mid_block", 0, x, widths[-1], attends=True)
        x = self._resnet("/mid_block/resnets.1", x, widths[-1])
        for place, level in enumerate(reversed(range(len(widths)))):
            scope = f"/up_blocks.{place}"
            for block in range(BLOCKS + 1):
                x = self._joined(scope, x, skips.pop())
                x = self._block(scope, block, x, widths[level], attends=level < last)
            if level:
                x = self._upsampled(f"{scope}/upsamplers.0", x)
        normed = self._silu("/conv_act", self._group_norm("/conv_norm_out", x).name)
        self._conv("/conv_out", _Map(normed, x.channels, x.side), LATENT)

    def _block(self, scope: str, block: int, x: _Map, width: int, *, attends: bool) -> _Map:
        x = self._resnet(f"{scope}/resnets.{block}", x, width)
        return self._transformer(f"{scope}/attentions.{block}", x) if attends else x

    def _time(self, scope: str, width: int) -> str:
        """Embed `t` by sines and cosines, then two linear layers; four times the width."""
        add, half = self._graph.node, width // 2
        frequencies = 10_000.0 ** (-np.arange(half, dtype=np.float64) / half)
        table = self._graph.constant("frequencies", frequencies[None].astype(np.float32))
        column = add("Reshape", scope, "t", self._graph.sizes(1, 1))
        angles = add("Mul", scope, column, table)
        waves = add("Concat", scope, add("Cos", scope, angles), add("Sin", scope, angles), axis=-1)
        first = self._linear(f"{scope}/linear_1", waves, width, 4 * width, bias=True)
        second = self._silu(f"{scope}/act", first)
        made = self._linear(f"{scope}/linear_2", second, 4 * width, 4 * width, bias=True)
        return self._silu(f"{scope}/nonlinearity", made)

    def _resnet(self, scope: str, x: _Map, width: int) -> _Map:
        add = self._graph.node
        wide = 4 * self._sizes.widths[0]
        inner = self._silu(f"{scope}/act", self._group_norm(f"{scope}/norm1", x).name)
        first = self._conv(f"{scope}/conv1", _Map(inner, x.channels, x.side), width)
        moved = self._linear(f"{scope}/time_emb_proj", self._embedded, wide, width, bias=True)
        shaped = add("Reshape", scope, moved, self._graph.sizes(1, width, 1, 1))
        summed = _Map(add("Add", scope, first.name, shaped), width, x.side)
        inner = self._silu(f"{scope}/act", self._group_norm(f"{scope}/norm2", summed).name)
        second = self._conv(f"{scope}/conv2", _Map(inner, width, x.side), width, share=SHARE)
        if x.channels != width:
            x = self._conv(f"{scope}/conv_shortcut", x, width, kernel=1)
        return _Map(add("Add", scope, x.name, second.name), width, x.side)

    def _transformer(self, scope: str, x: _Map) -> _Map:
        add, width, area = self._graph.node, x.channels, x.side**2
        inner = self._conv(
            f"{scope}/proj_in", self._group_norm(f"{scope}/norm", x), width, kernel=1
        )
        rows = add("Transpose", scope, inner.name, perm=[0, 2, 3, 1])
        rows = add("Reshape", scope, rows, self._graph.sizes(1, area, width))
        block = f"{scope}/transformer_blocks.0"
        for number, context in ((1, ""), (2, "context")):
            normed = self._layer_norm(f"{block}/norm{number}", rows, width)
            mixed = self._attention(f"{block}/attn{number}", normed, context, width, area)
            rows = add("Add", block, mixed, rows)
        normed = self._layer_norm(f"{block}/norm3", rows, width)
        rows = add("Add", block, self._feed_forward(f"{block}/ff", normed, width), rows)
        back = add("Reshape", scope, rows, self._graph.sizes(1, x.side, x.side, width))
        back = add("Transpose", scope, back, perm=[0, 3, 1, 2])
        out = self._conv(
            f"{scope}/proj_out", _Map(back, width, x.side), width, kernel=1, share=SHARE
        )
        return _Map(add("Add", scope, out.name, x.name), width, x.side)

    def _attention(self, scope: str, x: str, context: str, width: int, area: int) -> str:
        """Attend to the rows themselves or, where `context` is named, to its rows."""
        add, sizes = self._graph.node, self._graph.sizes
        source, wide, rows = (context, CONTEXT, WORDS) if context else (x, width, area)

        def headed(name: str, value: str, channels: int, count: int) -> str:
            flat = self._linear(f"{scope}/{name}", value, channels, width)
            shaped = add("Reshape", scope, flat, sizes(1, count, HEADS, width // HEADS))
            return add("Transpose", scope, shaped, perm=[0, 2, 1, 3])

        query = headed("to_q", x, width, area)
        key = add("Transpose", scope, headed("to_k", source, wide, rows), perm=[0, 1, 3, 2])
        scores = add("MatMul", scope, query, key)
        scaled = add("Mul", scope, scores, self._graph.number((width // HEADS) ** -0.5))
        shares = add("Softmax", scope, scaled, axis=-1)
        mixed = add("MatMul", scope, shares, headed("to_v", source, wide, rows))
        back = add("Transpose", scope, mixed, perm=[0, 2, 1, 3])
        flat = add("Reshape", scope, back, sizes(1, area, width))
        return self._linear(f"{scope}/to_out.0", flat, width, width, bias=True, share=SHARE)

    def _feed_forward(self, scope: str, x: str, width: int) -> str:
        """GEGLU: half of the channels pass the other half's GELU."""
        add, number, inner = self._graph.node, self._graph.number, 4 * width
        gated = f"{scope}/net.0"
        both = self._linear(f"{gated}/proj", x, width, 2 * inner, bias=True)
        halves = self._graph.sizes(inner, inner)
        value, gate = self._graph.nodes("Split", gated, both, halves, outputs=2, axis=-1)
        erf = add("Erf", gated, add("Div", gated, gate, number(2**0.5)))
        raised = add("Mul", gated, gate, add("Add", gated, erf, number(1.0)))
        product = add("Mul", gated, value, add("Mul", gated, raised, number(0.5)))
        return self._linear(f"{scope}/net.2", product, inner, width, bias=True, share=SHARE)

    def _joined(self, scope: str, x: _Map, skip: _Map) -> _Map:
        name = self._graph.node("Concat", scope, x.name, skip.name, axis=1)
        return _Map(name, x.channels + skip.channels, x.side)

    def _upsampled(self, scope: str, x: _Map) -> _Map:
        scales = self._graph.constant("scales", np.array([1, 1, 2, 2], np.float32))
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
        name = self._graph.node("Resize", scope, x.name, "", scales, nearest_mode="floor", **how)
        return self._conv(scope, _Map(name, x.channels, 2 * x.side), x.channels)

    def _conv(
        self, scope: str, x: _Map, out: int, *, kernel: int = 3, stride: int = 1, share: float = 1
    ) -> _Map:
        name, wide = scope[1:], x.channels * kernel**2
        weight = self._graph.drawn(
            f"{name}.weight", out, x.channels, kernel, kernel, size=share * wide**-0.5
        )
        bias = self._graph.drawn(f"{name}.bias", out, size=0.1 * share)
        how = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        made = self._graph.node("Conv", scope, x.name, weight, bias, **how)
        return _Map(made, out, x.side // stride)

    def _linear(
        self, scope: str, x: str, wide: int, out: int, *, bias: bool = False, share: float = 1
    ) -> str:
        name = scope[1:]
        weight = self._graph.drawn(f"{name}.weight", wide, out, size=share * wide**-0.5)
        product = self._graph.node("MatMul", scope, x, weight)
        if not bias:
            return product
        offset = self._graph.drawn(f"{name}.bias", out, size=0.1 * share)
        return self._graph.node("Add", scope, offset, product)

    def _silu(self, scope: str, x: str) -> str:
        return self._graph.node("Mul", scope, x, self._graph.node("Sigmoid", scope, x))

    def _group_norm(self, scope: str, x: _Map) -> _Map:
        add, graph = self._graph.node, self._graph
        flat = add("Reshape", scope, x.name, graph.sizes(0, GROUPS, -1))
        ones = graph.constant("ones", np.ones(GROUPS, np.float32))
        zeros = graph.constant("zeros", np.zeros(GROUPS, np.float32))
        normed = add("InstanceNormalization", scope, flat, ones, zeros, epsilon=1e-5)
        back = add("Reshape", scope, normed, graph.sizes(1, x.channels, x.side, x.side))
        gamma = graph.drawn(f"{scope[1:]}.weight", x.channels, 1, 1, size=0.1, around=1.0)
        beta = graph.drawn(f"{scope[1:]}.bias", x.channels, 1, 1, size=0.1)
        name = add("Add", scope, add("Mul", scope, back, gamma), beta)
        return _Map(name, x.channels, x.side)

    def _layer_norm(self, scope: str, x: str, width: int) -> str:
        add, number = self._graph.node, self._graph.number
        centred = add("Sub", scope, x, add("ReduceMean", scope, x, axes=[-1]))
        squared = add("Pow", scope, centred, number(2.0))
        variance = add("ReduceMean", scope, squared, axes=[-1])
        deviation = add("Sqrt", scope, add("Add", scope, variance, number(1e-5)))
        gamma = self._graph.drawn(f"{scope[1:]}.weight", width, size=0.1, around=1.0)
        beta = self._graph.drawn(f"{scope[1:]}.bias", width, size=0.1)
        scaled = add("Mul", scope, add("Div", scope, centred, deviation), gamma)
        return add("Add", scope, scaled, beta)
