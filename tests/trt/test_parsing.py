"""Which layers the real parser of TensorRT-RTX refuses low, and who is to blame."""

from pathlib import Path

import pytest

from models import parse, save
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.tensorrt_backend import refusals, refused_low, to_blame
from precision_bisect.graphs.typed.model_files import TypedFolder
from precision_bisect.graphs.typed.typed_graph import TypedGraph
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan

NAMES = tuple(map(LayerName, ("square", "mish", "tanh", "swish")))


def written(plan: Plan) -> TypedGraph:
    """Return the chain of `NAMES` in BF16 but for the kept layers, with Casts round each."""
    steps, value = [], "x"
    for index, operator in enumerate(("Mul", "Mish", "Tanh", "HardSwish")):
        low = 1 if index in plan.kept else 16
        operands = f"c{index}, c{index}" if operator == "Mul" else f"c{index}"
        steps.append(f"c{index} = Cast<to={low}>({value}) v{index} = {operator}({operands})")
        value = f"v{index}"
    body = f"(float[4] x) => (float[4] y) {{ {' '.join(steps)} y = Cast<to=1>({value}) }}"
    proto = parse(body, opset=22)
    for name, node in zip(NAMES, proto.graph.node[1::2], strict=False):
        node.name = name
    return TypedGraph(proto=proto, weights={})


def test_refused_layers_are_found_one_after_another(rtx: Flavour, tmp_path: Path) -> None:
    """The parser stops at its first error; all low layers that it refuses are found, in order."""
    found = refused_low(rtx, NAMES, written, TypedFolder(tmp_path))
    assert ["mish", "swish"] == list(found)
    assert found[NAMES[1]].startswith("importMish: Only FLOAT32 or FLOAT16 input is supported")


def test_any_number_of_refused_layers_is_found(rtx: Flavour, tmp_path: Path) -> None:
    """Sixty refused layers in sequence take sixty rounds, and all of them are found."""
    names = tuple(LayerName(f"mish{index}") for index in range(60))

    def chained(plan: Plan) -> TypedGraph:
        steps = [
            f"c{n} = Cast<to={1 if n in plan.kept else 16}>({f'v{n - 1}' if n else 'x'})"
            f" v{n} = Mish(c{n})"
            for n in range(len(names))
        ]
        body = f"(float[4] x) => (float[4] y) {{ {' '.join(steps)} y = Cast<to=1>(v59) }}"
        proto = parse(body, opset=22)
        for name, node in zip(names, proto.graph.node[1::2], strict=True):
            node.name = name
        return TypedGraph(proto=proto, weights={})

    assert list(names) == list(refused_low(rtx, names, chained, TypedFolder(tmp_path)))


def test_a_layer_that_is_refused_at_any_precision_is_none(rtx: Flavour, tmp_path: Path) -> None:
    """Keeping a layer high that the parser does not know at all would help nobody."""

    def unknown(plan: Plan) -> TypedGraph:
        del plan
        proto = parse("(float[2,2] x) => (float y) { s = Mul(x, x) y = Det(s) }")
        for name, node in zip(NAMES, proto.graph.node, strict=False):
            node.name = name
        return TypedGraph(proto=proto, weights={})

    assert {} == refused_low(rtx, NAMES, unknown, TypedFolder(tmp_path))


def test_a_graph_that_parses_has_no_errors(rtx: Flavour, tmp_path: Path) -> None:
    """With the refused layers kept, the parser has nothing to say."""
    typed = written(Plan.of([1, 3]))
    assert [] == list(refusals(rtx, save(typed.proto, tmp_path)))


@pytest.mark.parametrize(
    ("node", "blamed"),
    [
        ("first", ["first"]),
        ("cast", ["first"]),
        ("joined", ["first", "second"]),
        ("moved", []),
        ("nowhere", []),
    ],
)
def test_an_error_is_blamed_on_the_candidates_before_it(node: str, blamed: list[str]) -> None:
    """Followers and Casts hand the blame on to the nearest candidates that feed them."""
    graph = parse(
        "(float[4] x) => (float[8] y, float[4] z) { a = Mul(x, x) b = Mul(a, a) c = Cast<to=1>(b)"
        " d = Tanh(x) y = Concat<axis=0>(c, d) z = Identity(x) }"
    ).graph
    for name, inner in zip(
        ("before", "first", "cast", "second", "joined", "moved"), graph.node, strict=True
    ):
        inner.name = name
    candidates = {"before", "first", "second"}
    assert blamed == sorted(to_blame(graph, node, candidates))
