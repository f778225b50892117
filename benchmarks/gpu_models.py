"""Decoders and a diffusion U-Net of the sizes in use, drawn from a seed, without torch.

    python benchmarks/gpu_models.py decoder decoder/model.onnx --layers 24 --loud 1 22
    python benchmarks/gpu_models.py unet unet/model.onnx --multiplier 0.1 --side 16

The decoder takes `ids` (1, tokens) and gives `logits` (1, tokens, vocabulary). It has RMSNorm
spelled out, rotary positions, a causal mask and SwiGLU. In blocks that are `loud` one channel of
SwiGLU's product leaves FP16's range, as outlier channels of trained decoders do. The U-Net is in
`gpu_unet`.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gpu_graph import Graph
from gpu_unet import UNet, write_unet
from onnx import TensorProto

MASKED = -10_000.0
"""What is added to the scores of later tokens; FP16 holds it."""
SEED = 0
LOUD = 300.0
"""How much larger the first channel's gate and value are in a loud block; their product reaches
1e5, and the weight behind it takes that back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The sizes of a decoder; `hidden` is the width inside its feed-forward blocks.

    `loud` are the numbers of blocks whose product leaves FP16's range.
    """

    vocabulary: int = 32_000
    width: int = 2048
    layers: int = 16
    hidden: int = 5632
    heads: int = 16
    tokens: int = 64
    loud: tuple[int, ...] = ()


def write_decoder(path: Path, sizes: Decoder, seed: int = SEED) -> int:
    """Write a decoder and its data file; return how many parameters it has."""
    graph = Graph(path, seed)
    table = graph.drawn("embed_tokens.weight", sizes.vocabulary, sizes.width, size=1.0)
    stream = graph.node("Gather", "/embed_tokens", table, "ids")
    for layer in range(sizes.layers):
        scope = f"/layers.{layer}"
        normed = _norm(graph, f"{scope}/input_layernorm", stream, sizes)
        added = _attention(graph, f"{scope}/self_attn", normed, sizes)
        stream = graph.node("Add", scope, stream, added)
        normed = _norm(graph, f"{scope}/post_attention_layernorm", stream, sizes)
        loud = LOUD if layer in sizes.loud else 1.0
        added = _feed_forward(graph, f"{scope}/mlp", normed, sizes, loud)
        stream = graph.node("Add", scope, stream, added)
    normed = _norm(graph, "/norm", stream, sizes)
    _linear(graph, "/lm_head", normed, sizes.width, sizes.vocabulary)
    graph.save(
        [("ids", TensorProto.INT64, (1, sizes.tokens))],
        ("logits", (1, sizes.tokens, sizes.vocabulary)),
        opset=14,
    )
    return graph.parameters


def _linear(
    graph: Graph, scope: str, x: str, wide: int, out: int, share: float = 1.0, first: float = 1.0
) -> str:
    """Multiply by a weight whose result has the size of what it is given, times `share`."""
    weight = graph.drawn(f"{scope[1:]}.weight", wide, out, size=share * wide**-0.5, first=first)
    return graph.node("MatMul", scope, x, weight)


def _norm(graph: Graph, scope: str, x: str, sizes: Decoder) -> str:
    """Divide by the root of the mean of squares, and scale."""
    squared = graph.node("Pow", scope, x, graph.number(2.0))
    mean = graph.node("ReduceMean", scope, squared, axes=[-1])
    root = graph.node("Sqrt", scope, graph.node("Add", scope, mean, graph.number(1e-6)))
    scaled = graph.node("Div", scope, x, root)
    gamma = graph.drawn(f"{scope[1:]}.weight", sizes.width, size=0.1, around=1.0)
    return graph.node("Mul", scope, scaled, gamma)


def _attention(graph: Graph, scope: str, x: str, sizes: Decoder) -> str:
    width, heads, tokens = sizes.width, sizes.heads, sizes.tokens
    apart = graph.sizes(1, tokens, heads, width // heads)

    def projected(name: str) -> str:
        flat = _linear(graph, f"{scope}/{name}", x, width, width)
        shaped = graph.node("Reshape", scope, flat, apart)
        return graph.node("Transpose", scope, shaped, perm=[0, 2, 1, 3])

    query = _rotated(graph, scope, projected("q_proj"), sizes)
    key = _rotated(graph, scope, projected("k_proj"), sizes)
    turned = graph.node("Transpose", scope, key, perm=[0, 1, 3, 2])
    scores = graph.node("MatMul", scope, query, turned)
    scores = graph.node("Div", scope, scores, graph.number((width // heads) ** 0.5))
    later = np.triu(np.full((1, 1, tokens, tokens), MASKED, np.float32), 1)
    masked = graph.node("Add", scope, scores, graph.constant("causal_mask", later))
    shares = graph.node("Softmax", scope, masked, axis=-1)
    mixed = graph.node("MatMul", scope, shares, projected("v_proj"))
    back = graph.node("Transpose", scope, mixed, perm=[0, 2, 1, 3])
    joined = graph.node("Reshape", scope, back, graph.sizes(1, tokens, width))
    return _linear(graph, f"{scope}/o_proj", joined, width, width, _share(sizes))


def _rotated(graph: Graph, scope: str, x: str, sizes: Decoder) -> str:
    """Turn pairs of channels by angles that grow with the position."""
    half = sizes.width // sizes.heads // 2
    angles = np.outer(np.arange(sizes.tokens), 10_000.0 ** (-np.arange(half) / half))
    twice = np.concatenate([angles, angles], 1)[None, None].astype(np.float32)
    cosine = graph.constant("rotary_cos", np.cos(twice))
    sine = graph.constant("rotary_sin", np.sin(twice))
    ends = (graph.sizes(0), graph.sizes(half), graph.sizes(2 * half))
    axis = graph.sizes(3)
    first = graph.node("Slice", scope, x, ends[0], ends[1], axis)
    second = graph.node("Slice", scope, x, ends[1], ends[2], axis)
    turned = graph.node("Concat", scope, graph.node("Neg", scope, second), first, axis=-1)
    straight = graph.node("Mul", scope, x, cosine)
    return graph.node("Add", scope, straight, graph.node("Mul", scope, turned, sine))


def _feed_forward(graph: Graph, scope: str, x: str, sizes: Decoder, loud: float) -> str:
    gate = _linear(graph, f"{scope}/gate_proj", x, sizes.width, sizes.hidden, first=loud)
    open_ = graph.node("Mul", scope, gate, graph.node("Sigmoid", scope, gate))
    up = _linear(graph, f"{scope}/up_proj", x, sizes.width, sizes.hidden, first=loud)
    product = graph.node("Mul", scope, open_, up)
    back, share = loud**-2, _share(sizes)
    return _linear(
        graph, f"{scope}/down_proj", product, sizes.hidden, sizes.width, share, first=back
    )


def _share(sizes: Decoder) -> float:
    """Return how large what a block adds is, so that all of them add about what there was."""
    return float((2 * sizes.layers) ** -0.5)


def main(argv: Sequence[str] | None = None) -> int:
    """Write what the command line asks for, and print how large it is."""
    usual = Decoder()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("network", choices=["decoder", "unet"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--width", type=int, default=usual.width, help="of the decoder")
    parser.add_argument("--layers", type=int, default=usual.layers, help="of the decoder")
    parser.add_argument("--loud", type=int, nargs="*", default=(), help="blocks of the decoder")
    parser.add_argument("--multiplier", type=float, default=1.0, help="of the U-Net's widths")
    parser.add_argument("--side", type=int, default=64, help="of the U-Net's latent")
    parser.add_argument("--seed", type=int, default=SEED)
    given = parser.parse_args(argv)
    given.path.parent.mkdir(parents=True, exist_ok=True)
    if given.network == "unet":
        unet = UNet(multiplier=given.multiplier, side=given.side)
        count = write_unet(given.path, unet, given.seed)
    else:
        hidden = given.width * usual.hidden // usual.width
        loud = tuple(given.loud)
        sizes = Decoder(width=given.width, layers=given.layers, hidden=hidden, loud=loud)
        count = write_decoder(given.path, sizes, given.seed)
    print(f"{given.path}: {count / 1e6:.1f}M parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
