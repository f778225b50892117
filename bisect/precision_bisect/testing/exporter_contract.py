"""What every export promises, as a test that anybody can run on theirs.

`check_exporter(write)` in a test of yours, where `write` is what your entry point names. It needs
nothing but this package. Names of layers come from files that nobody vouches for, so one of the
models has names that a shell, a regular expression or a template would take for its own.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from onnx import helper

from precision_bisect.exports.export import Export, NotWritable
from precision_bisect.graphs.load import load_model
from precision_bisect.layer_table import LayerName
from precision_bisect.precisions import Pair
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.testing.driving import ContractError

PLAIN = ("embed", "scores", "weights")
HOSTILE = ("a,b:fp16", "$(touch x)`", "'\"\\", "{kept}\n*", "über/層")


def check_exporter(write: Callable[[Export], str]) -> None:
    """Check every promise on small models.

    Raises ContractError, an AssertionError, for the first promise that is broken.
    """
    with TemporaryDirectory() as folder:
        plain = _export(Path(folder), PLAIN, PLAIN[1:2])
        try:
            text = write(plain)
        except NotWritable as reason:
            raise ContractError(f"it cannot write a plain plan: {reason}") from reason
        if not text:
            raise ContractError(f"it returns {text!r}, not a text")
        other = _export(Path(folder), PLAIN, PLAIN[2:])
        if text != write(plain):
            raise ContractError("the same plan is another text the second time")
        if text == write(other):
            raise ContractError("two plans are the same text")
        # Names with quotes, commas and line ends, as files may have them.
        for kept in ((), HOSTILE[:1], HOSTILE):
            _writes_or_says_why(write, _export(Path(folder), HOSTILE, kept), kept)


def _writes_or_says_why(
    write: Callable[[Export], str], export: Export, kept: Sequence[str]
) -> None:
    try:
        write(export).encode()
    except NotWritable as reason:
        if not str(reason) or not str(reason).isprintable():
            raise ContractError(f"the reason {str(reason)!r} is no line for people") from reason
    except Exception as error:  # an exporter raises anything
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ContractError(f"with {list(kept)} kept it raises {what}, not NotWritable") from error


def _export(folder: Path, names: Sequence[str], kept: Sequence[str]) -> Export:
    """Return the export of a row of Relu layers, of which some are kept."""
    nodes = [
        helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], name=name)
        for i, name in enumerate(names)
    ]
    ends = [
        helper.make_tensor_value_info(f"t{i}", onnx.TensorProto.FLOAT, [2])
        for i in (0, len(nodes))
    ]
    graph = helper.make_graph(nodes, "contract", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = folder / "contract.onnx"
    onnx.save(model, path)
    return Export(
        model=load_model(path),
        kept=[LayerName(name) for name in kept],
        pair=Pair(low="fp16", high="fp32"),
        settings=EngineSettings(),
        modules=kept,
        folder=folder,
    )
