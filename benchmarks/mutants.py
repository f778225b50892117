"""Which share of small changes to the source do the tests notice?

    python benchmarks/mutants.py --number 80 --seed 0 --output mutants.json
    python benchmarks/mutants.py --by-hand --output by_hand.json

A mutant is one operator, comparison, constant, condition or result of a sampled place, changed;
`mutants_by_hand.json` has those that would give users a wrong answer in silence. The tests of a
mutant are the few files that import its module and little else, and those of its room. They run
on a copy of the working tree until one fails: the mutant is killed then. What kills must pass on
the unchanged tree.
"""

import argparse
import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

HERE = Path(__file__).resolve().parent.parent
BY_HAND = Path(__file__).with_name("mutants_by_hand.json")
CORE = "bisect/precision_bisect"
TESTS = {  # What holds mutants, a folder or a file, and the test files that go through it.
    f"{CORE}/graphs/typed": "typed/test_rewrite.py typed/test_biases.py exports/test_mixed.py "
    "typed/test_properties.py typed/test_norms_by_defaults.py",
    f"{CORE}/judging/comparators": "comparators/test_exact.py comparators/test_empty.py",
    f"{CORE}/judging/comparators/matched_boxes.py": "comparators/test_matched_boxes.py "
    "comparators/test_ready_made.py",
    f"{CORE}/judging/comparators/steadiness.py": "comparators/test_steadiness.py",
    f"{CORE}/judging/comparators/task_checks.py": "comparators/test_output_forms.py "
    "comparators/test_ready_made.py",
    f"{CORE}/search/certificate": "driver/test_certificate.py driver/test_forecasts.py",
    f"{CORE}/search/speed/costs.py": "speed/test_costs.py",
    f"{CORE}/search/speed": "speed/test_improve.py speed/test_limits.py speed/test_fastest.py",
    f"{CORE}/search": "driver/test_flow.py driver/test_engine_flow.py driver/test_parallel.py "
    "curve/test_flow.py driver/test_samples_at_once.py",
    f"{CORE}/backends/emulation": "backends/test_emulated.py backends/test_targets.py "
    "backends/test_segments.py backends/test_fixed_edges.py",
    f"{CORE}/backends/emulation/emulator_plugin.py": "speed/test_deployed_on_engine.py",
    f"{CORE}/pipeline": "driver/test_conclude.py speed/test_deployed_on_engine.py",
    f"{CORE}/pipeline/elsewhere.py": "speed/test_deployed_on_engine.py speed/test_to_deploy.py",
    f"{CORE}/pipeline/inside_layers.py": "diagnosis/test_inner_sums.py",
    f"{CORE}/pipeline/ladder": "ladder",
    f"{CORE}/pipeline/on_target": "on_target",
    f"{CORE}/exports": "exports/test_golden.py exports/test_points.py "
    "speed/test_deployed_on_engine.py",
    f"{CORE}/exports/trtexec.py": "exports/test_rungs.py exports/test_trtexec_script.py",
    f"{CORE}/explaining/advice": "advice",
    f"{CORE}/explaining/advice/chosen_rows.py": "diagnosis/test_selections.py",
    f"{CORE}/explaining/diagnosis": "diagnosis/test_causes.py diagnosis/test_diagnose.py",
    f"{CORE}/runs/results": "results reports/test_screens.py reports/test_summary.py",
    f"{CORE}/runs/results/result.py": "search/test_api.py results reports/test_screens.py",
    f"{CORE}/runs/results/run_status.py": "commandline/test_run_or_model.py",
    f"{CORE}/runs/results/saved.py": "monitoring/test_status.py",
    f"{CORE}/runs/results/speed_report.py": "reports/test_deployed_case.py",
}
IMPORTERS = 6  # The test files of a module that import it and the fewest other modules.
LIMIT_S = 600  # Some mutants never end; that, too, is noticed.
SWAPS: dict[type, type] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq},
    **{ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot},
    **{ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add},
    **{ast.Mult: ast.Div, ast.Div: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr},
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
Place = ast.expr | ast.Return


@dataclass(frozen=True)
class Mutant:
    """A file of the tree, where its text changes, and to what."""

    path: Path
    start: int
    old: str
    new: str

    def text(self) -> str:
        """Return the whole changed text of the file."""
        text = (HERE / self.path).read_text()
        return text[: self.start] + self.new + text[self.start + len(self.old) :]

    def described(self) -> dict[str, Any]:
        """Return its place, and the change, for the results."""
        line = (HERE / self.path).read_text()[: self.start].count("\n") + 1
        return {"at": f"{self.path}:{line}", "old": self.old, "new": self.new}


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
    """Yield the nodes in functions that compute: no annotations, defaults, decorators, texts."""
    for child in ast.iter_child_nodes(tree):
        constant = isinstance(tree, ast.Module | ast.ClassDef) and isinstance(child, ast.Assign)
        if constant or isinstance(child, ast.arguments | ast.AnnAssign | ast.JoinedStr):
            continue
        yield child
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            child.decorator_list = []
        if isinstance(child, ast.FunctionDef):
            child.returns = None
        yield from within(child)


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield one for each place of the file that may change, in its order."""
    text = path.read_text()
    lines = text.splitlines(keepends=True)

    def offset(line: int, column: int) -> int:
        return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    for node in within(ast.parse(text)):
        for old, changed in changes(node):
            start = offset(old.lineno, old.col_offset)
            end = offset(old.end_lineno or old.lineno, old.end_col_offset or 0)
            new = ast.unparse(ast.fix_missing_locations(changed))
            new = f"({new})" if isinstance(old, ast.expr) else new
            yield Mutant(path.relative_to(HERE), start, text[start:end], new)


def drawn(number: int, seed: int) -> list[Mutant]:
    """Return a sample of all mutants of the rooms of `TESTS`."""
    files = sorted({path for room in TESTS for path in (HERE / room).rglob("*.py")})
    places = [mutant for path in files for mutant in mutants(path)]
    return random.Random(seed).sample(places, number)


def by_hand() -> list[Mutant]:
    """Return those of the file beside this one.

    Raises ValueError where a text to change is not in its file, or more than once.
    """
    chosen = []
    for entry in json.loads(BY_HAND.read_text()):
        path, old = Path(CORE, entry["file"]), entry["old"]
        text = (HERE / path).read_text()
        if text.count(old) != 1:
            raise ValueError(f"{path} has {old!r} {text.count(old)} times, not once")
        chosen.append(Mutant(path, text.index(old), old, entry["new"]))
    return chosen


@cache
def imports_of_tests() -> dict[str, set[str]]:
    """Return the modules of the core that each test file imports."""
    imported = {}
    for path in sorted((HERE / "tests").rglob("test_*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        froms = [each for each in nodes if isinstance(each, ast.ImportFrom) and each.module]
        names = {f"{each.module}.{name.name}" for each in froms for name in each.names}
        names |= {str(each.module) for each in froms}
        imported[str(path.relative_to(HERE))] = {
            name for name in names if name.startswith("precision_bisect.")
        }
    return imported


def tests_of(path: Path) -> list[str]:
    """Return the few files of tests that import the module most closely, and its room's."""
    module = ".".join(path.relative_to("bisect").with_suffix("").parts)
    importers = [test for test, modules in imports_of_tests().items() if module in modules]
    importers.sort(key=lambda test: len(imports_of_tests()[test]))
    room = max((each for each in TESTS if f"{path}/".startswith(f"{each}/")), key=len)
    return list(dict.fromkeys(importers[:IMPORTERS] + [f"tests/{x}" for x in TESTS[room].split()]))


def first_failure(tree: Path, tests: list[str]) -> str | None:
    """Return the first test that fails on `tree`, "time" where the tests do not end, or None."""
    roots = [str(tree / each) for each in ("bisect", "strategies", "reports", "benchmarks")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(roots)}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    with subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            output, _ = run.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            return "time"
    failures = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (failures or [f"exit {run.returncode}"])[0] if run.returncode else None


def main() -> None:
    """Try each mutant, write which test noticed it, and print the share that was killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--by-hand", action="store_true", help=f"those of {BY_HAND.name}")
    parser.add_argument("--only", nargs="*", default=[""], help="those at these places")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at once")
    parser.add_argument("--output", type=Path, required=True, help="a JSON file")
    options = parser.parse_args()
    chosen = by_hand() if options.by_hand else drawn(options.number, options.seed)
    places = [mutant.described()["at"] for mutant in chosen]
    chosen = [
        m for m, at in zip(chosen, places, strict=True) if any(x in at for x in options.only)
    ]
    results: list[dict[str, Any]] = []
    trees: SimpleQueue[Path] = SimpleQueue()

    def try_out(mutant: Mutant) -> None:
        tree = trees.get()
        (tree / mutant.path).write_text(mutant.text())
        killer = first_failure(tree, tests_of(mutant.path))
        shutil.copy(HERE / mutant.path, tree / mutant.path)
        trees.put(tree)
        results.append(mutant.described() | {"by": killer})
        options.output.write_text(json.dumps(results, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        for number in range(options.jobs):
            tree = Path(folder, f"tree{number}")
            ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__")
            shutil.copytree(HERE, tree, ignore=ignored, symlinks=True)
            trees.put(tree)
        list(pool.map(try_out, chosen))
        killers = {each["by"].split(" - ")[0].partition(" ")[2] for each in results if each["by"]}
        unsteady = first_failure(trees.get(), sorted(filter(None, killers)))
    killed = sum(each["by"] is not None for each in results)
    print(f"{killed} of {len(results)} mutants killed")
    if unsteady:
        sys.exit(f"{unsteady} fails on the unchanged tree, too")


if __name__ == "__main__":
    main()
