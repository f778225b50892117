"""Writes FindOptions of api.py from the fields of Options: python docs/make_find_options.py.

A TypedDict cannot be derived from a dataclass in a way that type checkers follow.
"""

import ast
import builtins
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from precision_bisect import options
from precision_bisect.options import Options
from precision_bisect.settings.flags import flag_name

API = Path(options.__file__).with_name("api.py")
"""Not imported: it may lack what is new."""
OF_FIND = ("model", "tol", "inputs", "out")
"""What `find` takes in types of its own."""
_FIELDS = re.compile(r'(class FindOptions\(.*\):\n    """.*"""\n\n)(?:    \w+: .*\n)+')


def with_fields(source: str) -> str:
    """Return the source of api.py with the fields of Options, and with imports of their types."""
    imports, fields = set[str](), list[str]()
    for settings in reversed(Options.__mro__[:-1]):
        module = sys.modules[settings.__module__]
        declared = ast.parse(inspect.getsource(settings)).body[0]
        assert isinstance(declared, ast.ClassDef)
        for field in declared.body:
            if not isinstance(field, ast.AnnAssign) or ast.unparse(field.target) in OF_FIND:
                continue
            imports |= {*_imports(field.annotation, module)}
            fields.append(f"    {ast.unparse(field.target)}: {ast.unparse(field.annotation)}\n")
            name = flag_name(ast.unparse(field.target)).removeprefix("--").replace("-", "_")
            if name != ast.unparse(field.target):
                fields.append(f"    {name}: str\n")
    head, first, rest = source.partition("\nfrom ")
    imported = "".join(f"\n{line}" for line in sorted(imports))
    return _FIELDS.sub(lambda match: match[1] + "".join(fields), head + imported + first + rest)


def _imports(annotation: ast.expr, module: ModuleType) -> Iterator[str]:
    """Yield an import for each name of an annotation: as in the module, or from it."""
    homes = {
        name.name: str(node.module)
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
            yield f"from {homes.get(node.id, module.__name__)} import {node.id}"


if __name__ == "__main__":
    API.write_text(with_fields(API.read_text(encoding="utf-8")), encoding="utf-8")
    for work in (("check", "--select", "I,F401", "--fix"), ("format",)):
        subprocess.run([sys.executable, "-m", "ruff", *work, str(API)], check=True)
