"""`precision-bisect layers`: the layer table for people and for programs."""

from collections import Counter

from precision_bisect.errors import counted, printable
from precision_bisect.layer_table import Layer, LayerTable, scope_of
from precision_bisect.runs import plain_json


def as_text(table: LayerTable) -> str:
    """Return candidates first, then the others with their reason, one node a line."""
    width = max((len(layer.op_type) for layer in table.layers), default=0)
    candidates, nodes = len(table.candidates), len(table.layers)
    without = "" if table.modules else "; their names tell no modules"
    lines = [f"{counted(candidates, 'candidate')} of {counted(nodes, 'node')}{without}", ""]
    lines += [_line(layer, width) for layer in table.candidates]
    others = [layer for layer in table.layers if layer.exclusion is not None]
    if others:
        lines += ["", "Left alone:"]
        lines += [f"{_line(layer, width)}  {_reason(layer)}" for layer in others]
        counts = Counter(str(layer.exclusion) for layer in others)
        lines += ["", *(f"{count:6}  {reason}" for reason, count in counts.most_common())]
    return "\n".join(lines) + "\n"


def as_json(table: LayerTable) -> str:
    """Return a JSON list with one object per node, in network order."""
    rows = [
        {
            "name": layer.name,
            "op_type": layer.op_type,
            "module": layer.module,
            "candidate": layer.exclusion is None,
            "reason": None if layer.exclusion is None else _reason(layer),
            "named_in_model": layer.named_in_model,
        }
        for layer in table.layers
    ]
    return plain_json.dumps(rows, indent=2) + "\n"


def _reason(layer: Layer) -> str:
    return f"{layer.exclusion}{': ' if layer.detail else ''}{printable(layer.detail)}"


def _line(layer: Layer, width: int) -> str:
    line = f"  {printable(layer.op_type):<{width}}  {printable(layer.name)}"
    # A name scope is in the name.
    shows_module = layer.module != scope_of(layer.name)
    return f"{line}  {printable(layer.module)}" if shows_module else line
