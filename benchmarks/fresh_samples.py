"""What runs say to deploy, judged on fresh samples: before and after a change of the rule.

    python fresh_samples.py --cache zoo-cache --out results/fresh.json --label after
    python fresh_samples.py … --label before --python ../../other-checkout/.venv/bin/python
    python fresh_samples.py --out results/fresh.json --table

The command line searches for ONNX Runtime with a few samples of each network of the zoo. The
emulator of this checkout judges what the run says to deploy, a plan or FP32, with TF32 or without,
on samples that no run was given. Its time is the estimate, a share of that of FP32 without TF32.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from precision_bisect.graphs.ort_fusions import fused_groups
from precision_bisect.layer_table import LayerName
from precision_bisect.options import Options
from precision_bisect.pipeline.elsewhere import has_tf32, in_tf32
from precision_bisect.pipeline.evaluators import evaluator
from precision_bisect.pipeline.prepare import Prepared, prepare
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.saved import read_result
from precision_bisect.runs.runfolder import FUSED_MODEL
from precision_bisect.search.other_cases import Cases
from precision_bisect.search.speed.costs import cost_graph
from precision_bisect.settings.targets import TF32
from precision_bisect.trial import Phase, Proposal, SampleSet
from zoo.networks import NETWORKS, save
from zoo.networks import prepare as prepare_network

SAMPLES, FRESH = 8, 64
SEED = 51
SMALL = (
    *("magika", "mel", "asr_features", "wake_word", "pitch", "t5_encoder", "vision_transformer"),
    *("decoder_step", "orientation", "ppocr_cls", "hebrew", "mixture", "moderation", "unet"),
)


def main() -> None:
    """Run the networks that the file has no row of under this label; or print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cache", type=Path, default=Path("zoo-cache"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--label", default="after")
    parser.add_argument("--python", default=sys.executable, help="that runs the command line")
    parser.add_argument("--networks", nargs="+", default=SMALL)
    parser.add_argument("--limit-s", type=float, default=900.0, help="seconds of a run")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    rows = json.loads(given.out.read_text()) if given.out.exists() else []
    if given.table:
        print("\n".join(table(rows)))
        return
    for name in given.networks:
        if (name, given.label) not in {(row["network"], row["label"]) for row in rows}:
            row = {"network": name, "label": given.label, **measured(name, given)}
            # Another label's rows may have been added meanwhile.
            rows = [*(json.loads(given.out.read_text()) if given.out.exists() else []), row]
            given.out.write_text(json.dumps(rows, indent=1) + "\n")
            print(row, flush=True)


def measured(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Search with some samples of a network, and judge on others what is to be deployed."""
    network = NETWORKS[name]
    model = prepare_network(name, given.cache.resolve()) / "model.onnx"
    judged, fresh = (
        network.draw(np.random.default_rng((SEED, place)), model, count)
        for place, count in enumerate((SAMPLES, FRESH))
    )
    with tempfile.TemporaryDirectory() as temporary:
        run, inputs = Path(temporary) / "run", Path(temporary) / "judged"
        save(judged, inputs)
        words = [given.python, "-m", "precision_bisect", str(model), "--inputs", str(inputs)]
        words += [f"--{network.limit}", f"{network.limits[0]:g}", "--target", "onnxruntime"]
        subprocess.run(
            [*words, "--out", str(run)],
            stdout=subprocess.DEVNULL,
            check=False,
            timeout=given.limit_s,
        )
        result = read_result(run / "result.json", "")
        # Its plan is of that file.
        if result.deploy is not None and result.deploy.fused and not result.fp32_wins:
            model = run / FUSED_MODEL
        limits: dict[str, Any] = {network.limit: network.limits[0]}
        options = Options(
            model=model,
            inputs=[*judged, *fresh],
            out=Path(temporary) / "judging",
            backend="emulated",
            target="onnxruntime",
            **limits,
        )
        (Path(temporary) / "judging").mkdir()
        prepared = prepare(options, ignore, Path(temporary) / "judging")
        return {"limit": network.limits[0], **_judged(prepared, result, len(judged))}


def to_deploy(result: Result) -> tuple[str, Sequence[str] | None, bool]:
    """Return what a run says to deploy: words, the layers kept (None: all), whether in TF32."""
    deploy, tf32 = result.deploy, result.tf32
    if result.fp32_wins and deploy is not None:
        if tf32 is not None and deploy.rivals_tf32(tf32):
            return "FP32", None, True
        return "FP32 without TF32", None, False
    kept = result.kept if deploy is None else deploy.kept
    holds = bool(tf32 is not None and tf32.passed) if deploy is None else deploy.tf32
    return "a plan", kept, holds


def _judged(prepared: Prepared, result: Result, given: int) -> dict[str, Any]:
    """Return the errors on samples after the `given` ones, shares of the limit, and the time."""
    table = prepared.case.model.table
    what, kept, with_tf32 = to_deploy(result)
    fused = result.deploy is not None and result.deploy.fused
    if kept is None:
        plan = prepared.everything
    else:
        known = {str(name) for name in table.names}
        plan = table.plan_of([LayerName(name) for name in kept if name in known])
    samples, limit = SampleSet.chosen(range(given)).others, prepared.problem.tolerance or 1.0
    trial = Proposal(plan=plan, samples=samples, phase=Phase.RECHECK)
    with_tf32 = with_tf32 and has_tf32(prepared)
    if with_tf32:
        cases = Cases()
        with in_tf32(prepared, cases):
            outcome = cases(Proposal(plan=plan, samples=samples, phase=Phase.RECHECK, case=TF32))
    else:
        assert prepared.here is not None
        outcome = evaluator(prepared, prepared.here)(trial)
    judgement = outcome.evidence.one_by_one
    assert judgement is not None
    errors = [float("inf") if e is None else e / limit for e in judgement.errors]
    groups = fused_groups(prepared.case.model)
    costs, plain = (
        cost_graph(prepared.case.model, prepared.case.shapes, fused=groups, tf32=tf32)
        for tf32 in (with_tf32, False)
    )
    share = None if result.deploy is None else getattr(result.deploy, "unseen_share", None)
    return {
        "status": result.status.value,
        "to_deploy": what,
        "tf32": with_tf32,
        "fused": fused,
        "kept": len(plan),
        "of": len(table.candidates),
        "over": sum(not error <= 1 for error in errors),
        "fresh": len(errors),
        "worst": str(max(errors)),
        "unseen_share": share,
        "time": round(costs.time(plan.kept) / plain.time(prepared.everything.kept), 4),
        "seconds": round(result.wall_s, 1),
    }


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of a table of two labels, and counts of networks with none over."""
    labels = list(dict.fromkeys(row["label"] for row in rows))
    cells: dict[str, dict[str, Any]] = {}
    for row in rows:
        cells.setdefault(row["network"], {})[row["label"]] = row
    lines = [
        f"| network | {' | '.join(f'{label}: what, over, worst, time' for label in labels)} |",
        f"|---|{'---|' * len(labels)}",
    ]
    for name, own in cells.items():
        figures = [
            f"{row['to_deploy']}{', TF32' * (row['tf32'] and row['to_deploy'] == 'a plan')}, "
            f"{row['over']} of {row['fresh']}, {float(row['worst']):.2g}, {row['time']:.3f}"
            if label in own and (row := own[label])
            else ""
            for label in labels
        ]
        lines.append(f"| {name} | {' | '.join(figures)} |")
    for label in labels:
        own_rows = [row for row in rows if row["label"] == label]
        clean = sum(not row["over"] for row in own_rows)
        lines.append(f"{label}: none over in {clean} of {len(own_rows)} networks")
    return lines


if __name__ == "__main__":
    main()
