r"""The list for ModelOpt AutoCast's `--nodes_to_exclude`: one regular expression a line.

AutoCast keeps a node high if `re.match` finds one of the expressions at the start of its name
(modelopt/onnx/autocast/nodeclassifier.py), so each ends with `\Z`; `$` would let a line break
follow. No line holds white space, quotes, wildcards or anything outside ASCII, so that the file
can be handed over by `$(cat autocast-exclude.txt)` under `set -f`, in any locale.
"""

from collections.abc import Iterable, Iterator
from string import ascii_letters, digits

from precision_bisect.errors import first_of
from precision_bisect.exports.export import Export, NotWritable, named_nodes
from precision_bisect.graphs.fusing.norms import norms
from precision_bisect.graphs.node_views import View
from precision_bisect.graphs.typed.high_nodes import FLOATS
from precision_bisect.graphs.typed.rewrite import writer_of
from precision_bisect.runs.runfolder import AUTOCAST, MIXED_MODEL

# Characters that mean themselves to `re` as well as to a shell.
_PLAIN = frozenset(f"{ascii_letters}{digits}_/:,")
_MOST_NAMED = 5


def write_autocast(names: Iterable[str]) -> str:
    """Return the list that excludes exactly the nodes of these names."""
    literal = ("".join(c if c in _PLAIN else _escaped(c) for c in name) for name in names)
    return "".join(f"{name}\\Z\n" for name in literal)


def _escaped(character: str) -> str:
    """Return an expression that matches the character, in printable ASCII without spaces."""
    code = ord(character)
    if character in ".-":
        return f"\\{character}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def autocast_exclude(export: Export) -> str:
    """Return the patterns of the nodes that stay FP32. Raises NotWritable for other types."""
    nodes = named_nodes(export)
    if export.quantized or len({"fp32", *export.below_fp32}) > 2:
        types = ", ".join(("fp32", *reversed(export.below_fp32)))
        raise NotWritable(f"AutoCast knows one 16-bit type beside fp32, and the plan has {types}")
    if export.pair.high != "fp32":
        raise NotWritable(f"AutoCast keeps layers in fp32, and the plan in {export.pair.high}")
    elem_types = export.model.elem_types
    casts = {layer.name for layer in export.model.table.layers if layer.op_type == "Cast"}
    # AutoCast 0.47 drops a Cast of integers that is listed, if low and high nodes read it. What it
    # returns is FP32 all the same.
    names = (
        name
        for name, node in nodes.items()
        if name not in casts or any(elem_types.get(tensor) in FLOATS for tensor in node.reads)
    )
    return write_autocast((*names, *_norms(export)))


def autocast_remark(export: Export) -> str:
    """Return a sentence on kept layers that engines of AutoCast's model run low, "" for none.

    AutoCast puts nothing between its Casts and a lone product, and TensorRT-RTX makes one low
    kernel of them; with an FP32 high type and a list of nodes only.
    """
    writer = writer_of(export.model, export.pair, export.scales)
    names = writer.lone_islands(export.plan)
    if not names:
        return ""
    layers, low = first_of(names, _MOST_NAMED), export.pair.low.upper()
    return (
        f"{AUTOCAST}: TensorRT-RTX runs {layers} of AutoCast's model in {low} all the same; "
        f"{MIXED_MODEL} prevents that"
    )


def _norms(export: Export) -> Iterator[str]:
    """Yield AutoCast's names of the norms in pieces that take or give FP32.

    It puts one operator in the place of each that it recognizes, called after the first mean
    (modelopt/onnx/autocast/graphsanitizer.py).
    """
    view = View(export.model)
    means = {node.name for node in view.nodes if node.op_type == "ReduceMean"}
    for norm in norms(view):
        first = next(name for name in norm.members if name in means)
        if first in export.high or norm.members[-1] in export.high:
            yield f"LayerNorm_{first}"
