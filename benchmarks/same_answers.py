"""Does this code give the answers of an older commit: 21 small networks, and the zoo's.

Each code runs in its own environment, a process for each network, at the network's strict limit.
`python benchmarks/same_answers.py --before ../old/.venv/bin/python --cache zoo-cache`
Trials of the same plan, samples, kind and draw are compared one by one. A judge that shares no
code with the tool (`zoo.judge`) tells how far each exported answer is off, on samples and copies:
as it is written, and with ReduceSumSquare as the product and the sum that TensorRT's parser
makes of it, each stored.
"""

import argparse
import json
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from zoo.judge import copy_of, error, evaluator, load, plain
from zoo.networks import NETWORKS, ROOT, SkippedError, prepare
from zoo.others import OTHERS

ANSWER = ("status", "kept", "error", "minimal", "checked")
TIMEOUT_S = 300.0
COPIES = 16
SEARCHES = "SELECT plan, samples, kind, draw, verdict, error FROM trials WHERE {} ORDER BY id"
BY_CASE = "case_name = ''"
"""An older ledger has no trials of other cases."""


def search(folder: Path, limit: str, bound: float, out: Path) -> dict[str, Any]:
    """Search a prepared network with the code of this process; return answer and trials."""
    from precision_bisect import find
    from precision_bisect.options import Options

    asked: dict[str, Any] = {limit: bound, "backend": "emulated"}
    if "objective" in Options.__dataclass_fields__:
        asked["objective"] = "fewest"
    begun = time.perf_counter()
    result = find(folder / "model.onnx", inputs=folder / "judged", out=out, **asked)
    seconds, cpu_s = time.perf_counter() - begun, 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        cpu_s += used.ru_utime + used.ru_stime
    return {
        "status": result.status.value,
        "candidates": result.candidates,
        "kept": list(result.kept),
        "error": result.error,
        "minimal": result.certificate.minimal,
        "checked": sorted(result.certificate.checked),
        "trials": result.trials,
        "evaluations": result.evaluations,
        "seconds": round(seconds, 1),
        "cpu_s": round(cpu_s, 1),
        "ledger": _ledger(out / "ledger.sqlite"),
        "judged": _judged(folder, out / "model.mixed.onnx", limit),
    }


def compared(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return in which parts two answers differ, and how their common trials compare."""
    ledgers = before.pop("ledger", {}), after.pop("ledger", {})
    common = [trial for trial in ledgers[0] if trial in ledgers[1]]
    unlike = [trial for trial in common if ledgers[0][trial] != ledgers[1][trial]]
    return {
        "differs": [part for part in ANSWER if before.get(part) != after.get(part)],
        "common_trials": len(common),
        "unlike_trials": [[t, ledgers[0][t], ledgers[1][t]] for t in unlike],
        "before": before,
        "after": after,
    }


def measured(python: Path, name: str, cache: Path, timeout_s: float) -> dict[str, Any] | None:
    """Search a network with an interpreter's code; None where that takes longer than it may."""
    with tempfile.TemporaryDirectory() as work:
        answer = Path(work) / "answer.json"
        asked = [str(python), __file__, "--one", name, "--cache", str(cache), "--out", str(answer)]
        begun = time.perf_counter()
        try:
            ended = subprocess.run(
                asked, capture_output=True, text=True, timeout=timeout_s, cwd=work, check=False
            )
        except subprocess.TimeoutExpired:
            return None
        if not answer.exists():
            lines = ended.stderr.strip().splitlines() or ["no message"]
            return {"status": lines[-1].replace(str(cache), "."), "exit": ended.returncode}
        whole = round(time.perf_counter() - begun, 1)
        return {**json.loads(answer.read_text()), "process_s": whole}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both codes on the networks that the file of results has not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="the interpreter of the older code")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", default=[*OTHERS, *NETWORKS])
    parser.add_argument("--timeout-s", type=float, default=TIMEOUT_S)
    parser.add_argument("--one", help="search this network here, for the answer in --out")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results" / "same_answers.json"
    )
    asked = parser.parse_args(arguments)
    cache, networks = asked.cache.resolve(), NETWORKS | OTHERS
    if asked.one:
        network = networks[asked.one]
        with tempfile.TemporaryDirectory() as work:
            folder = prepare(asked.one, cache, network)
            row = search(folder, network.limit, network.limits[-1], Path(work) / "run")
        asked.out.write_text(json.dumps(row))
        return
    rows = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    for name in asked.networks:
        if name in rows:
            continue
        try:
            prepare(name, cache, networks[name])
        except SkippedError as reason:
            print(f"{name}: skipped, {reason}", flush=True)
            continue
        # Not resolved: an environment's interpreter is known by the path to it.
        pythons = (asked.before.absolute(), Path(sys.executable))
        before, after = (measured(python, name, cache, asked.timeout_s) for python in pythons)
        if before is None or after is None:
            print(f"{name}: no two answers in {asked.timeout_s:g} s each", flush=True)
            continue
        bound = {networks[name].limit: networks[name].limits[-1]}
        rows[name] = {"limit": bound, **compared(before, after)}
        asked.out.write_text(json.dumps(rows, indent=1) + "\n")
        print(name, rows[name]["differs"] or "the same", flush=True)


def _ledger(path: Path) -> dict[str, Any]:
    """Return the trials of the searched case by what they are of: verdict and error of each."""
    with closing(sqlite3.connect(path)) as ledger:
        columns = {row[1] for row in ledger.execute("PRAGMA table_info(trials)")}
        cases = BY_CASE if "case_name" in columns else "1"
        trials = ledger.execute(SEARCHES.format(cases)).fetchall()
    return {json.dumps(trial[:4]): trial[4:] for trial in trials}


def _judged(folder: Path, exported: Path, limit: Any) -> dict[str, float]:
    """Return the errors of an exported answer by the zoo's judge; nothing where there is none."""
    if not exported.exists():
        return {}
    reference, samples, errors = plain(folder / "model.onnx"), load(folder / "judged"), {}
    apart = exported.with_name("in_steps.onnx")
    onnx.save(in_steps(onnx.load(exported)), apart)
    for name, path in (("written", exported), ("in_steps", apart)):
        answer = evaluator(path)
        copies = (
            copy_of(x, np.random.default_rng((n, k)))
            for n in range(COPIES)
            for k, x in enumerate(samples)
        )
        for what, given in (("samples", samples), ("copies", copies)):
            worst = max(error(answer(sample), reference(sample), limit) for sample in given)
            errors[f"{name}, {what}"] = worst
    return errors


def in_steps(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with each ReduceSumSquare as a product and a sum, in place."""
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type == "ReduceSumSquare":
            square = f"{node.output[0]}/square"
            nodes.append(helper.make_node("Mul", [node.input[0]] * 2, [square]))
            node.op_type, node.input[0] = "ReduceSum", square
            # Its axes are an input from opset 13 on, those of the other from 18 on.
            axes = [a for a in node.attribute if a.name == "axes"]
            for setting in axes:
                node.attribute.remove(setting)
                values = np.array(setting.ints, np.int64)
                model.graph.initializer.append(numpy_helper.from_array(values, f"{square}/axes"))
                node.input.append(f"{square}/axes")
        nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    return model


if __name__ == "__main__":
    main()
