"""Run the main job on the zoo's networks and judge each answer independently.

    cd benchmarks
    python -m zoo --label today --out results/zoo.json
    python -m zoo --label before --tool-path ../../other-checkout --networks magika ppocr_rec

Networks are prepared into `--cache` first, those that cannot be are skipped with the reason. The
tool runs as a process of its own, once per network and limit, from any checkout. Rows of other
labels in `--out` stay. Seconds are the tool's, with whatever else the machine does.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.judge import COPIES, Judgement, judge, load
from zoo.networks import NETWORKS, ROOT, Network, SkippedError, prepare
from zoo.rounded import UnknownTypeError
from zoo.table import Row, abouts, merged, save
from zoo.table import load as load_rows

ROOTS = ("bisect", "strategies", "reports")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A checkout of the tool, the Python that runs it, and what else it is told."""

    label: str
    checkout: Path
    python: str
    arguments: tuple[str, ...]

    def run(self, network: Network, folder: Path, bound: float, out: Path) -> tuple[int, str]:
        """Search a prepared network; return the exit code and what was said on stderr."""
        job = [str(folder / "model.onnx"), f"--{network.limit}", f"{bound:g}"]
        job += ["--inputs", str(folder / "judged"), "--out", str(out), "--overwrite"]
        paths = os.pathsep.join(str(self.checkout / root) for root in ROOTS)
        ended = subprocess.run(
            [self.python, "-m", "precision_bisect", *job, *self.arguments],
            env=os.environ | {"PYTHONPATH": paths, "NO_COLOR": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        return ended.returncode, ended.stderr


def measure(tool: Tool, name: str, folder: Path, bound: float, runs: Path, copies: int) -> Row:
    """Run the tool on a network at a limit and judge what it exported."""
    network = NETWORKS[name]
    out = runs / f"{name}-{bound:g}-{tool.label}"
    shutil.rmtree(out, ignore_errors=True)
    begun = time.perf_counter()
    code, said = tool.run(network, folder, bound, out)
    seconds = time.perf_counter() - begun
    result = _result(out)
    judged, trouble = _judged(network, folder, out, bound, copies)
    ended = "" if code in (0, 3) else _last(said).replace(str(folder), name)
    trials = result.get("trials")
    return Row(
        network=name,
        label=tool.label,
        limit=network.limit,
        bound=bound,
        exit=code,
        status=result.get("status", f"exit {code}"),
        message=ended or trouble,
        minimal=(result.get("certificate") or {}).get("minimal"),
        candidates=result.get("candidates"),
        kept=len(result["kept"]) if "kept" in result else None,
        error=_number(result.get("error")),
        seconds=round(seconds, 1),
        trials=trials,
        forecasts=None if trials is None else result.get("evaluations", trials) - trials,
        judged=judged,
        arguments=shlex.join(tool.arguments),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for. Returns 1 where a network was skipped."""
    given = parse(argv)
    tool = Tool(
        label=given.label,
        checkout=given.tool_path.resolve(),
        python=given.python,
        arguments=tuple(shlex.split(given.arguments)),
    )
    skipped = 0
    for name in given.networks:
        try:
            folder = prepare(name, given.cache.resolve())
        except SkippedError as reason:
            skipped += 1
            print(f"{name}: skipped, {reason}", flush=True)
            continue
        for bound in () if given.prepare else given.limits or NETWORKS[name].limits:
            _keep(measure(tool, name, folder, bound, folder.parent / "runs", given.copies), given)
    return int(skipped > 0)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="zoo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--limits", nargs="+", type=float, help="instead of each network's two")
    parser.add_argument("--label", default="today", help="what the rows are called")
    parser.add_argument("--about", help="a sentence on this label for the table")
    parser.add_argument("--tool-path", type=Path, default=ROOT, help="checkout of the tool")
    parser.add_argument("--python", default=sys.executable, help="the Python that runs it")
    parser.add_argument("--arguments", default="", help="further ones: '--max-time 90s'")
    parser.add_argument("--copies", type=int, default=COPIES)
    parser.add_argument("--cache", type=Path, default=Path("zoo-cache"), help="prepared networks")
    parser.add_argument("--prepare", action="store_true", help="prepare and run nothing")
    parser.add_argument("--out", type=Path, help="JSON file; the table comes beside it")
    return parser.parse_args(argv)


def _keep(row: Row, given: argparse.Namespace) -> None:
    """Print a row and write it."""
    judged = row.judged and f"{row.judged.copies_failed} of {row.judged.copies} copies failed"
    print(f"{row.network} {row.bound:g}: {row.status}, {row.kept} kept, {judged}", flush=True)
    if given.out:
        about = abouts(given.out) | ({given.label: given.about} if given.about else {})
        save(merged(load_rows(given.out), row, list(NETWORKS)), given.out, about)


def _judged(
    network: Network, folder: Path, out: Path, bound: float, copies: int
) -> tuple[Judgement | None, str]:
    """Return the judgement of the export, or why there is none."""
    exported = out / "model.mixed.onnx"
    if not exported.exists():
        return None, "no model.mixed.onnx"
    try:
        judged = judge(
            folder / "model.onnx",
            exported,
            judged=load(folder / "judged"),
            fresh=load(folder / "fresh"),
            limit=network.limit,
            bound=bound,
            copies=copies,
        )
    except UnknownTypeError as error:
        return None, str(error)
    return judged, ""


def _result(out: Path) -> dict[str, Any]:
    path = out / "result.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _last(said: str) -> str:
    """Return the last line of what was said, which has the error."""
    return said.strip().rpartition("\n")[2][:300]


def _number(error: Any) -> float | None:
    """Return an error as a number; one that is infinite stands as text."""
    return None if error is None else float(error)


if __name__ == "__main__":
    sys.exit(main())
