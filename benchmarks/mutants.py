"""Which share of small changes to the source do the tests notice?

    python benchmarks/mutants.py --number 80 --seed 0 --output killed.jsonl

A mutant is one operator, comparison, constant, condition or result of a sampled place, changed.
The tests of the room that holds it run on a copy of the working tree until one fails: the mutant
is killed then.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
CORE = "bisect/precision_bisect"
SEARCH = "search curve unseen stability driver strategies isolation"
TESTS = {  # What holds mutants, and the folders and files of the tests that belong to it.
    f"{CORE}/graphs/typed": "typed fusing exports backends",
    f"{CORE}/judging/comparators": "comparators exports/test_run_onnxruntime.py",
    f"{CORE}/search/certificate": f"driver/test_certificate.py golden reports {SEARCH}",
    f"{CORE}/search/speed": "speed",
    f"{CORE}/search": SEARCH,
}
SWAPS: dict[type, type] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq},
    **{ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot},
    **{ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add},
    **{ast.Mult: ast.Div, ast.Div: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr},
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
LIMIT_S = 900  # Some mutants never end; that, too, is noticed.


Place = ast.expr | ast.Return


def changes(node: ast.AST) -> Iterator[tuple[Place, Place]]:
    """Yield what may become something else in `node`, and that."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            yield node, ast.Compare(node.left, [SWAPS[type(op)]()], node.comparators)
        case ast.BoolOp():
            yield node, ast.BoolOp(SWAPS[type(node.op)](), node.values)
        case ast.BinOp() if type(node.op) in SWAPS:
            yield node, ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)
        case ast.UnaryOp(op=ast.Not()):
            yield node, node.operand
        case ast.Constant(value=bool(value)):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield node, ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            yield node, ast.Call(ast.Name(CALLS[name]), node.args, node.keywords)
        case ast.If() | ast.IfExp():
            yield node.test, ast.UnaryOp(ast.Not(), node.test)
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            yield node, ast.Return(ast.Constant(None))


def within(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in functions that compute: no annotations, defaults and decorators."""
    for child in ast.iter_child_nodes(tree):
        constant = isinstance(tree, ast.Module | ast.ClassDef) and isinstance(child, ast.Assign)
        if constant or isinstance(child, ast.arguments | ast.AnnAssign):
            continue
        yield child
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            child.decorator_list = []
        if isinstance(child, ast.FunctionDef):
            child.returns = None
        yield from within(child)


def mutants(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, the source with one change) for each place of the file, in its order."""
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    for node in within(ast.parse(text)):
        for old, changed in changes(node):
            first, last = old.lineno - 1, (old.end_lineno or old.lineno) - 1
            head = lines[first].encode()[: old.col_offset].decode()
            tail = lines[last].encode()[old.end_col_offset :].decode()
            new = ast.unparse(ast.fix_missing_locations(changed))
            new = f"({new})" if isinstance(old, ast.expr) else new
            mutated = "".join([*lines[:first], head, new, tail, *lines[last + 1 :]])
            try:
                compile(mutated, str(path), "exec")
            except SyntaxError:  # a part of an f-string
                continue
            yield old.lineno, mutated


def room_of(path: Path) -> str:
    """Return the innermost key of `TESTS` that holds the file."""
    return max((each for each in TESTS if str(path).startswith(f"{each}/")), key=len)


def failing(tree: Path, tests: str) -> str | None:
    """Return the first test that fails on `tree`, "time" where the tests do not end, or None."""
    roots = [str(tree / each) for each in ("bisect", "strategies", "reports", "benchmarks")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(roots)}
    command = [sys.executable, "-m", "pytest", "-n", "2", "-x", "-q", "-p", "no:cacheprovider"]
    command += [f"tests/{each}" for each in tests.split()]
    try:
        run = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return "time"
    told = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (told or [f"exit {run.returncode}"])[0] if run.returncode else None


def main() -> None:
    """Draw the mutants, try each, and print the share that was killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True, help="a line of JSON per mutant")
    options = parser.parse_args()
    files = sorted({path for room in TESTS for path in (HERE / room).rglob("*.py")})
    found = [
        (path.relative_to(HERE), line, text) for path in files for line, text in mutants(path)
    ]
    sample = random.Random(options.seed).sample(found, options.number)
    killed = 0
    with tempfile.TemporaryDirectory() as folder, options.output.open("w") as output:
        tree = Path(folder) / "tree"
        ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__")
        shutil.copytree(HERE, tree, ignore=ignored, symlinks=True)
        for path, line, text in sample:
            (tree / path).write_text(text)
            killer = failing(tree, TESTS[room_of(path)])
            shutil.copy(HERE / path, tree / path)
            killed += killer is not None
            print(json.dumps({"at": f"{path}:{line}", "by": killer}), file=output, flush=True)
    print(f"{killed} of {len(sample)} mutants killed, of {len(found)} places")


if __name__ == "__main__":
    main()
