"""The modules of the source that nodes come from, as PyTorch's exporters leave them in a graph.

The exporter by `torch.export` writes qualified names into the nodes' metadata. The one by
TorchScript writes scopes into node names, `/blocks.3/norm1/Add`, in which the names of what is
never called are missing, and a number is added where a module is called again. There the names of
parameters tell the qualified name.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import TypeAlias

import onnx

from precision_bisect.layer_table import modules_around, scope_of

SCOPES = "pkg.torch.onnx.name_scopes"
"""Metadata of a node: the list of the modules around it as Python writes it, then its own name."""
_PRODUCER = "pytorch"
_LONGEST, _DEEPEST = 10_000, 100
"""Characters of such a list, and scopes in a name, that are read: the file is untrusted."""
_AGAIN = re.compile(r"(.+)_\d+")
# What torch.export adds to a module's name where it is called again.
_CALL = re.compile(r"@\d+")
# Operators that take a batch norm behind them in: they belong to what holds both modules.
_TAKING = ("Conv", "ConvTranspose", "Gemm")
_NORM = "batch_norm"
# Weights that were computed in the export, as those of a convolution with a batch norm are.
_RENAMED = re.compile(r"onnx::(Conv|Gemm)")
_Scope: TypeAlias = tuple[str, ...]


def module_names(proto: onnx.ModelProto) -> Mapping[str, str] | None:
    """Return the qualified name of each node's module, "" for the model itself, by node name.

    None where the names are not PyTorch's. What a name's scope leaves open is taken for the module
    around it, so a module may hold less than is said, and never more.
    """
    nodes = proto.graph.node
    module_by_node = {node.name: _told(node) for node in nodes}
    if any(module is not None for module in module_by_node.values()):
        return {name: module or "" for name, module in module_by_node.items()}
    if proto.producer_name != _PRODUCER or not any(map(_scope, nodes)):
        return None
    names = _Names(proto.graph)
    return {node.name: names[_scope(node)] for node in nodes}


def by_torch_export(proto: onnx.ModelProto) -> bool:
    """Tell whether PyTorch's exporter by `torch.export` wrote a file, by its metadata."""
    return any(entry.key == SCOPES for node in proto.graph.node for entry in node.metadata_props)


def _told(node: onnx.NodeProto) -> str | None:
    """Return the module that metadata tells of; None where there is none."""
    text = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), None)
    if text is None or len(text) > _LONGEST:
        return None
    try:
        *modules, call = map(str, ast.literal_eval(text))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    module = _CALL.sub("", modules[-1]) if modules else ""
    if _NORM not in call or node.op_type not in _TAKING:
        return module
    # It computes both, under the name of the norm.
    source_modules = modules_around(scope_of(node.input[1], ".") if len(node.input) > 1 else "")
    return next(
        (outer for outer in reversed(modules_around(module)) if outer in source_modules), ""
    )


def _scope(node: onnx.NodeProto) -> _Scope:
    first, *scopes = node.name.split("/", _DEEPEST + 1)
    if first or len(scopes) > _DEEPEST:
        return ()
    taking = node.op_type in _TAKING and any(map(_RENAMED.match, node.input[1:]))
    return tuple(filter(None, scopes[: -2 if taking else -1]))


class _Names(dict[_Scope, str]):
    """The qualified names of scopes, found when they are asked for."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        super().__init__({(): ""})
        self._graph = graph
        self._open: set[_Scope] = set()
        self._missing: dict[_Scope, bool] = {}
        self._inside: dict[_Scope, set[str]] = defaultdict(set)
        for scope in map(_scope, graph.node):
            for depth in range(len(scope)):
                self._inside[scope[:depth]].add(scope[depth])

    def __missing__(self, scope: _Scope) -> str:
        name = self[scope] = self._found(scope)
        return name

    def _found(self, scope: _Scope) -> str:
        """Return the name of a scope, where those around it have one."""
        outer = scope[:-1]
        above = self[outer]
        if name := self._told(scope):
            return name
        last = self._called(scope)
        around = f"{above}." if above else ""
        # What is never called has no scope: `/norm` may be `heads.norm`.
        alike = self._by_end[last.rpartition(".")[2]]
        matches = [name for name in alike if name.startswith(around) and _ends(name, last)]
        if len(matches) == 1:
            return matches[0]
        if matches or outer in self._open or self._names_missing(outer):
            self._open.add(scope)
            return above
        return self._straight(scope)

    def _told(self, scope: _Scope) -> str:
        """Return the name that parameters tell, "" where none does."""
        above, last = self[scope[:-1]], self._called(scope)
        written = f"{above}.{scope[-1]}" if above else scope[-1]
        if written in self._known:
            return written
        if owner := next((name for name in self._read[scope] if _ends(name, last)), ""):
            return owner
        straight = self._straight(scope)
        return straight if straight in self._known and last == scope[-1] else ""

    def _straight(self, scope: _Scope) -> str:
        """Return the name of a scope in which no name is missing."""
        above, last = self[scope[:-1]], self._called(scope)
        own = self._called(scope[:-1]) if len(scope) > 1 else ""
        # A Sequential's parts are called after itself: `/main/main.0` is `main.0`.
        if own and last.startswith(f"{own}.") and _ends(above, own):
            return above + last.removeprefix(own)
        return f"{above}.{last}" if above else last

    def _called(self, scope: _Scope) -> str:
        """Return the last part of a scope without the number of a further call."""
        again = _AGAIN.fullmatch(scope[-1])
        return again[1] if again and again[1] in self._inside[scope[:-1]] else scope[-1]

    def _names_missing(self, outer: _Scope) -> bool:
        """Tell whether modules in a scope are called past what holds them."""
        if outer not in self._missing:
            every = [(*outer, last) for last in self._inside[outer]]
            pairs = [(self._told(scope), self._straight(scope)) for scope in every]
            self._missing[outer] = any(name and name != straight for name, straight in pairs)
        return self._missing[outer]

    @cached_property
    def _known(self) -> frozenset[str]:
        """The modules that have parameters, and those around them."""
        owners = {scope_of(name, ".") for name in self._parameters}
        return frozenset(name for owner in owners for name in modules_around(owner))

    @cached_property
    def _by_end(self) -> Mapping[str, list[str]]:
        """The same by the last part of the name."""
        names_by_end: dict[str, list[str]] = defaultdict(list)
        for name in self._known:
            names_by_end[name.rpartition(".")[2]].append(name)
        return names_by_end

    @cached_property
    def _parameters(self) -> frozenset[str]:
        # Equal parameters are stored once; the others' names are those of copies.
        copies = (node.output[0] for node in self._graph.node if node.op_type == "Identity")
        stored = (tensor.name for tensor in self._graph.initializer)
        return frozenset(name for name in (*stored, *copies) if "/" not in name)

    @cached_property
    def _read(self) -> Mapping[_Scope, list[str]]:
        """By scope the modules whose parameters its nodes read."""
        owners_by_scope: dict[_Scope, list[str]] = defaultdict(list)
        for node in self._graph.node:
            for name in node.input:
                if name in self._parameters and (owner := scope_of(name, ".")):
                    owners_by_scope[_scope(node)].append(owner)
        return owners_by_scope


def _ends(name: str, last: str) -> bool:
    return f".{name}".endswith(f".{last}")
