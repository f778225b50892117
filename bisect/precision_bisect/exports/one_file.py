"""Exported scripts: templates of this folder, with what they use of this package in them."""

import ast
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path


def one_file(template: str, filled: dict[str, str]) -> str:
    """Return a template as a script that runs without this package.

    In place of its imports from here, if any, which stand together, it has what those modules
    define; what these import must be among the template's imports, too. `filled` has the new value
    of a variable, as source, by the line that defines it.
    """
    text = files(__package__).joinpath(template).read_text(encoding="utf-8")
    imports = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if str(node.module).startswith("precision_bisect.")]
    lines = text.splitlines(keepends=True)
    begin, end = (ours[0].lineno - 1, ours[-1].end_lineno) if ours else (0, 0)
    before, after = lines[:begin], lines[end:]
    for line, value in filled.items():
        place = after.index(line)
        after[place] = f"{line.partition(' = ')[0]} = {value}\n"
    definitions = "\n\n".join(_definitions(str(node.module)) for node in ours)
    return "".join((*before, definitions, *after))


def _definitions(module: str) -> str:
    """Return the source of a module from behind its imports on."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    text = Path(spec.origin).read_text(encoding="utf-8")
    body = ast.parse(text).body[1:]
    first = next(n for n in body if not isinstance(n, ast.Import | ast.ImportFrom))
    return "".join(text.splitlines(keepends=True)[first.lineno - 1 :])
