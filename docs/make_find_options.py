"""Writes what `find` takes from the fields of Options: python docs/make_find_options.py.

A TypedDict cannot be derived from a dataclass in a way that type checkers follow.
"""

import ast
import builtins
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from precision_bisect import options
from precision_bisect.options import Options

KEYWORDS = Path(options.__file__).with_name("find_options.py")
OF_FIND = ("model", "tol", "inputs", "out")
"""What `find` takes in types of its own."""
_HEAD = '''\
"""The keyword arguments of `find`, written by docs/make_find_options.py from fields of Options."""

from typing import TypedDict
'''


def find_options() -> str:
    """Return the source of the module."""
    imports, keywords = set[str](), list[str]()
    for settings in reversed(Options.__mro__[:-1]):
        module = sys.modules[settings.__module__]
        declared = ast.parse(inspect.getsource(settings)).body[0]
        assert isinstance(declared, ast.ClassDef)
        for field in declared.body:
            if isinstance(field, ast.AnnAssign) and ast.unparse(field.target) not in OF_FIND:
                imports |= {*_imports(field.annotation, module)}
                keywords.append(
                    f"    {ast.unparse(field.target)}: {ast.unparse(field.annotation)}"
                )
    about = '    """Further keyword arguments of `find`, which says what they mean."""\n'
    head = "\n".join((_HEAD, *sorted(imports), "", "class FindOptions(TypedDict, total=False):"))
    return "\n".join((head, about, *keywords, ""))


def _imports(annotation: ast.expr, module: ModuleType) -> Iterator[str]:
    """Yield an import for each name of an annotation: as in the module, or from it."""
    body = ast.parse(inspect.getsource(module)).body
    homes = {
        name.name: str(node.module)
        for node in body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
            yield f"from {homes.get(node.id, module.__name__)} import {node.id}"


if __name__ == "__main__":
    KEYWORDS.write_text(find_options(), encoding="utf-8")
    for work in (("check", "--select", "I", "--fix"), ("format",)):
        subprocess.run([sys.executable, "-m", "ruff", *work, str(KEYWORDS)], check=True)
