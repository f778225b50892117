"""Run folders of any size, written by the ledger and the result themselves, without a search."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from beginning import STARTED
from precision_bisect.explaining.diagnosis.findings import Finding, Signs
from precision_bisect.options import Options
from precision_bisect.plan import Plan
from precision_bisect.runs import plain_json
from precision_bisect.runs.ledger.store import open_ledger
from precision_bisect.runs.results.causes import Cause
from precision_bisect.runs.results.certificates import Certificate, Need
from precision_bisect.runs.results.curve_of_result import Culprit, CurvePoint, PointName
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.model_layers import ModelLayers, Row
from precision_bisect.runs.results.result import Diagnosis, Result, Rung
from precision_bisect.runs.results.run_status import RunStatus
from precision_bisect.runs.results.speed_report import FrontPoint
from precision_bisect.runs.runfolder import LAYER_PRECISIONS, LAYERS, LEDGER, RESULT, STATUS
from precision_bisect.runs.saved_options import told_options
from precision_bisect.trial import (
    Evidence,
    Honour,
    Kind,
    Latency,
    LayerHonour,
    Outcome,
    Phase,
    Proposal,
    SampleSet,
    Trial,
    TrialStatus,
    Verdict,
)

TOLERANCE = 0.01
FINGERPRINT = {
    "backend": "emulated",
    "high": "fp32",
    "holdout": 0,
    "low": "fp16",
    "samples": 2,
    "strategy": "guided",
}

OPTIONS = told_options(Options(model=Path("model.onnx")))


def names(count: int) -> list[str]:
    """Return names of layers as exporters write them, ten to a block, four blocks to a stage."""
    return [
        f"/stages.{i // 40}/blocks.{i // 10 % 4}/{'norm' if i % 10 < 4 else 'mlp'}/Op_{i}"
        for i in range(count)
    ]


def trial(plan: Plan, error: float, **asked: Any) -> Trial:
    """Return a finished trial; it passes when the error is within the tolerance."""
    latency = Latency(median_ms=1.0 + len(plan) / 100, spread_ms=0.01, runs=10)
    timed = asked.get("timed", False)
    return Trial(
        proposal=Proposal(plan=plan, **asked),
        outcome=Outcome(
            status=TrialStatus.FINISHED,
            verdict=Verdict.PASS if error <= TOLERANCE else Verdict.FAIL,
            error=error,
            wall_s=0.5,
            evidence=Evidence(latency=latency if timed else None),
        ),
    )


def searched(count: int, kept: Sequence[int], *, timed: bool = False) -> list[Trial]:
    """Return the trials of a search over `count` layers that ends with `kept`."""
    every, found = Plan.all_high(count), Plan.of(kept)
    trials = [
        trial(every, 1e-7, phase=Phase.PREFLIGHT, reason="every layer high", timed=timed),
        trial(Plan.of(()), float("inf"), phase=Phase.PREFLIGHT, reason="every layer low"),
    ]
    trials += [
        trial(
            every.without([layer]),
            0.05 if layer in kept else 1e-6 * (1 + layer % 97),
            phase=Phase.RANKING,
            samples=SampleSet.RANKING,
            kind=Kind.PREDICT,
            reason=f"{layer + 1} of {count}",
        )
        for layer in range(count)
    ]
    sizes = sorted({min(count - 1, len(kept) * 2**power) for power in range(1, 5)}, reverse=True)
    trials += [
        trial(
            found.with_(range(size)), 1e-4, reason=f"drop to {size}; what is believed", timed=timed
        )
        for size in sizes
    ]
    trials.append(trial(found, 0.008, reason="the chosen", timed=timed))
    trials += [
        trial(found.without([layer]), 0.03, phase=Phase.CERTIFICATE, reason="drop 1")
        for layer in kept
    ]
    return trials


def write_ledger(folder: Path, trials: Sequence[Trial]) -> None:
    """Write the trials into the ledger of a run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_ledger(folder / LEDGER, FINGERPRINT, resume=True) as ledger:
        ledger._connection.execute("PRAGMA synchronous=OFF")
        for each in trials:
            ledger.start(each.proposal)
            ledger.finish(each.proposal, each.outcome)


def write_layers_file(folder: Path, layers: Sequence[str]) -> None:
    """Write the list of layers: a chain in which every candidate but the first has a follower."""
    rows = [
        Row(
            name=name,
            op="MatMul" if place % 3 else "Pow",
            module=name.rpartition("/")[0],
            candidate=place,
            exclusion=None,
            follows=None,
            inputs=[place - 1] if place else [],
        )
        for place, name in enumerate(layers)
    ]
    contents = ModelLayers(model="big.onnx", layers=rows)
    (folder / LAYERS).write_text(plain_json.dumps(contents), encoding="utf-8")


def write_status(folder: Path, model: str = "/models/big.onnx", **changed: Any) -> None:
    """Write what a live status says of a run of this model."""
    values: dict[str, Any] = {
        "pid": 1,
        "host": "box",
        "version": "0.1.0",
        "started": "2026-01-01T00:00:00Z",
        "taken": None,
        "updated": "2026-01-01T00:00:01Z",
        "seconds": 1.0,
        "run": replace(STARTED, model=model, tolerance=TOLERANCE),
    }
    told = RunStatus(**(values | changed))
    (folder / STATUS).write_text(plain_json.dumps(told), encoding="utf-8")


def result_of(layers: Sequence[str], kept: Sequence[int], **changed: Any) -> Result:
    """Return the result of a search over these layers that keeps some, certified in full."""
    chosen = [layers[index] for index in kept]
    values: dict[str, Any] = {
        "status": Status.FOUND,
        "backend": "emulated",
        "emulated": True,
        "low": "fp16",
        "high": "fp32",
        "tolerance": TOLERANCE,
        "error": 0.008,
        "noise_floor": 0.0,
        "layers_total": len(layers),
        "candidates": len(layers),
        "kept": chosen,
        "rungs": [
            Rung(precision="fp32", layers=chosen, count=len(chosen)),
            Rung(precision="fp16", layers=None, count=len(layers) - len(chosen)),
        ],
        "layer_precisions": None,
        "layer_precisions_reason": "not asked",
        "certificate": Certificate(
            minimal=True,
            checked=chosen,
            unchecked=[],
            evidence=[
                Need(layer=name, needed=True, reason="fails", how="dropped", error=0.03)
                for name in chosen
            ],
        ),
        "trials": 9,
        "builds": 0,
        "evaluations": 9,
        "wall_s": 12.0,
        "latency_ms": None,
        "honoured": True,
        "honoured_layers": [
            LayerHonour(layer=name, honoured=Honour.HONOURED, evidence="its constants are FP32")
            for name in chosen
        ],
        "diagnosis": [
            Diagnosis(layer=name, cause=Cause.OVERFLOW, evidence="output reaches 1.41e+05")
            for name in chosen
        ],
        "fingerprint": FINGERPRINT,
        "options": OPTIONS,
    }
    return Result(**(values | changed))


def write_curve(folder: Path, layers: Sequence[str], kept: Sequence[int], **about: Any) -> Path:
    """Give a run its curve: every kept layer is a culprit, one point more is far below."""
    points: tuple[tuple[int, float, float, PointName], ...] = (
        (0, float("inf"), float("inf"), "all_low"),
        (len(kept) - 1, 0.03, 0.05, ""),
        (len(kept), 0.007, 0.009, "answer"),
        (len(kept) + 2, 0.0002, 0.0003, "margin"),
    )
    result = result_of(
        layers,
        kept,
        culprits=[
            Culprit(
                layer=layers[index],
                error_without=0.03,
                error_with=0.007,
                cause=Cause.OVERFLOW,
                evidence="so",
            )
            for index in kept
        ],
        curve=[
            CurvePoint(
                kept_count=count,
                error_median=median,
                error_max=worst,
                latency_ms=2.5 if name == "answer" else None,
                point=name,
            )
            for count, median, worst, name in points
        ],
        **about,
    )
    (folder / RESULT).write_text(result.to_text(), encoding="utf-8")
    return folder


def write_run(
    folder: Path, layers: Sequence[str], kept: Sequence[int], *, timed: bool = False
) -> Path:
    """Write a finished run over these layers, and return its folder."""
    write_ledger(folder, searched(len(layers), kept, timed=timed))
    write_layers_file(folder, layers)
    write_status(folder, state="finished")
    front = [
        FrontPoint(
            kept_count=len(kept),
            kept=[layers[index] for index in kept],
            passed=True,
            error=0.008,
            latency_ms=1.0 + len(kept) / 100,
            spread_ms=0.01,
            speedup=2.0,
            cost=None,
        )
    ]
    result = result_of(layers, kept, front=front if timed else ())
    (folder / RESULT).write_text(result.to_text(), encoding="utf-8")
    precisions = ",".join(f"{layers[index]}:fp32" for index in kept)
    (folder / LAYER_PRECISIONS).write_text(precisions + "\n", encoding="utf-8")
    return folder


def write_ladder(folder: Path, layers: Sequence[str]) -> Path:
    """Write a finished run over three types: layer 2 in FP32, 1 in FP16, the rest in INT8."""
    for rung, kept in (("2-int8", 1), ("1-fp16", 2), ("10-int8", 1)):
        write_ledger(folder / f"rung-{rung}", searched(len(layers), [kept, 5]))
    write_layers_file(folder, layers)
    rungs = [
        Rung(precision="fp32", layers=[layers[2]], count=1),
        Rung(precision="fp16", layers=[layers[1]], count=1),
        Rung(precision="int8", layers=None, count=len(layers) - 2),
    ]
    result = result_of(layers, [1, 2], low="int8", rungs=rungs)
    (folder / RESULT).write_text(result.to_text(), encoding="utf-8")
    return folder


def finding(layer: str, evidence: str = "so", **about: Any) -> Finding:
    """Return why a layer is kept: it overflows in FP16, unless it is said otherwise."""
    usual = {"kept": True, "low": "fp16", "high": "fp32", "cause": Cause.OVERFLOW}
    return Finding(**{**usual, **about}, layer=layer, evidence=Signs(evidence))
