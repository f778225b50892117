"""Patterns name layers as users write them, and no expression takes for ever."""

from pathlib import Path

import pytest

from models import parse, save
from precision_bisect.errors import UsageError
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.pipeline import known_layers
from precision_bisect.pipeline.known_layers import layers_of

NAMES = ("/enc/0/Conv_1", "/enc/0/Conv_10", "/enc/01/Exp", "/enc/0/Reshape", "a.b(c)")
BODY = """(float[4] x) => (float[4] y) <int64[1] shape = {4}> {
    a = Tanh(x) b = Exp(a) c = Tanh(b) d = Reshape(c, shape) y = Tanh(d) }"""


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """Return a model whose names begin with one another."""
    proto = parse(BODY)
    for node, name in zip(proto.graph.node, NAMES, strict=True):
        node.name = name
    return load_model(save(proto, tmp_path))


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("/enc/0/Conv_1", ["/enc/0/Conv_1"]),
        ("/enc/0/Conv_1.*", ["/enc/0/Conv_1", "/enc/0/Conv_10"]),
        ("/enc/0", ["/enc/0/Conv_1", "/enc/0/Conv_10"]),
        ("/enc", ["/enc/0/Conv_1", "/enc/0/Conv_10", "/enc/01/Exp"]),
        (r"/enc/0\d", ["/enc/01/Exp"]),
        ("Exp", ["/enc/0/Conv_10"]),
        ("E.p", ["/enc/0/Conv_10"]),
        ("a.b(c)", ["a.b(c)"]),
        ("Tanh|Exp", ["/enc/0/Conv_1", "/enc/0/Conv_10", "/enc/01/Exp", "a.b(c)"]),
    ],
)
def test_a_pattern_names_layers(pattern: str, named: list[str], model: Model) -> None:
    """What is a name, type or module means that alone; an expression begins where names do."""
    assert {*named} == layers_of([pattern], model.table, "--keep")


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("/enc/0/Conv_2", "did you mean /enc/0/Conv_1"),
        ("Reshape", "names no layer that is decided on; '/enc/0/Reshape': moves values only"),
        ("*", "is no regular expression: nothing to repeat"),
        ("(?P<a>x)" * 200, "is no regular expression: redefinition"),
        ("x{99999999999}", "is no regular expression"),
        ("(.*)*" * 9 + "!", "takes more than 1 s"),
    ],
)
def test_a_pattern_that_names_none_is_told(
    pattern: str, said: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt name, one that nobody decides on, and what is no expression end in one line."""
    if "takes more than" in said:  # Python itself has to start in that time
        monkeypatch.setattr(known_layers, "MATCH_S", 1.0)
    with pytest.raises(UsageError) as error:
        layers_of(["Tanh", pattern], model.table, "--keep")
    assert said in error.value.one_line()
