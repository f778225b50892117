"""run_onnxruntime.py: opens the exported model by the run's options, and judges by its limits."""

import ast
import json
import math
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import vermin

from effort import nightly
from exports_models import chain, export_of
from models import broken_norm, load_text, normal, save
from precision_bisect.backends.cuda.opening import Opener, opening_without
from precision_bisect.backends.cuda.provider import AS_WRITTEN, deployed_provider
from precision_bisect.exports import run_onnxruntime as script
from precision_bisect.exports.export import Export
from precision_bisect.exports.judging import Judge, write_run_script
from precision_bisect.exports.write import write_deployed
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.ort import CPU, Session
from precision_bisect.judging.comparators.polygraphy_plugin import PolygraphyComparator, Tolerance
from precision_bisect.judging.inputs.closed_loop import run_sample
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Sample
from precision_bisect.runs.results.deployment import SessionOptions
from precision_bisect.runs.runfolder import (
    GOLDEN_OUTPUTS,
    MIXED_MODEL,
    RUN_SCRIPT,
    RunFolder,
)
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.trial import Verdict

OPTIONS = SessionOptions(
    provider_options=deployed_provider(),
    session_config=AS_WRITTEN,
    disabled_optimizers=opening_without(()).disabled,
)
TWO = "(float[2,4] x) => (float[2,4] a, float[2,4] b) { a = Sigmoid(x) b = Tanh(a) }"


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What the script came to."""

    code: int
    lines: list[str]
    told: Mapping[str, Any]


def export(folder: Path, text: str, *, kept: bool = True) -> Export:
    """Return the export that keeps all layers of a model, or none."""
    model = load_text(text, folder)
    return Export(
        model=model,
        kept=model.table.names if kept else [],
        pair=Pair(low="fp16", high="fp32"),
        settings=EngineSettings(),
    )


def limits(metric: str = "elementwise", **of: float) -> PolygraphyComparator:
    """Return a comparator of the outputs with these limits."""
    tolerance = Tolerance(per_output=of)
    return PolygraphyComparator(metric=metric, atol=tolerance, rtol=tolerance, outputs=list(of))


def write(
    folder: Path,
    written: Export,
    samples: Sequence[Sample],
    comparator: Mapping[str, Any],
    *,
    off: float = 0.0,
    options: SessionOptions = OPTIONS,
) -> None:
    """Write the exports, with reference outputs that are `off` the model's."""
    session = Session(written.model.proto, written.model.weights)
    reference = [
        {name: array + np.float32(off) for name, array in session.run(feed).items()}
        for feed in samples
    ]
    judge = Judge(
        samples=samples,
        reference=reference,
        limits=comparator,
        backend="emulated",
        options=options,
    )
    done = write_deployed(RunFolder(folder), written, judge)
    assert done.reasons[RUN_SCRIPT] is None and done.deployment is not None


def ran(folder: Path, *arguments: str) -> Ran:
    """Run the script in a process that finds no module of this package."""
    out = folder / "told.json"
    done = subprocess.run(
        [sys.executable, str(folder / RUN_SCRIPT), *arguments, "--json", str(out)],
        env={"PYTHONPATH": "", "PATH": ""},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert "" == done.stderr
    told = json.loads(out.read_text(encoding="utf-8"))
    return Ran(code=done.returncode, lines=done.stdout.splitlines(), told=told)


SAMPLES = [{"x": normal(2, 4, seed=seed)} for seed in range(3)]


@pytest.mark.parametrize(("off", "word", "code"), [(0.0, "pass", 0), (0.02, "fail", 1)])
def test_fp32_is_judged_on_the_cpu(off: float, word: str, code: int, tmp_path: Path) -> None:
    """A model without 16-bit layers passes or fails there, with a line for each output."""
    settings = limits(a=1e-2, b=0.5).settings()
    write(tmp_path, export(tmp_path, TWO), SAMPLES, settings, off=off)
    found = ran(tmp_path, "--provider", "cpu")
    assert (code, word) == (found.code, found.told["outcome"])
    first, _, last = found.lines
    assert first.startswith(f"{'pass' if word == 'pass' else 'FAIL'}  a: error ")
    assert last.startswith(f"{word}: onnxruntime ")
    assert pytest.approx(off, abs=1e-6) == found.told["errors"]["a"]


def test_the_cpu_never_passes_fp16(tmp_path: Path) -> None:
    """Its figures are shown, and it is said that they do not judge; the exit code is neither."""
    write(tmp_path, export(tmp_path, TWO, kept=False), SAMPLES, limits(a=0.1, b=0.1).settings())
    found = ran(tmp_path, "--provider", "cpu")
    assert (2, "not_judged") == (found.code, found.told["outcome"])
    assert 3 == len(found.lines)
    assert "the CPU provider computes FP16 and BF16 in FP32" in found.lines[-1]


def test_without_cuda_it_says_so(tmp_path: Path) -> None:
    """Where this onnxruntime has no CUDA there is no verdict, and one line says what to do."""
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    write(tmp_path, export(tmp_path, TWO), SAMPLES, limits(a=0.1, b=0.1).settings())
    found = ran(tmp_path)
    assert 2 == found.code
    assert 1 == len(found.lines)


@pytest.mark.parametrize("lost", [MIXED_MODEL, GOLDEN_OUTPUTS])
@pytest.mark.parametrize("damage", ["removed", "cut"])
def test_damaged_files_are_no_verdict(lost: str, damage: str, tmp_path: Path) -> None:
    """A file that is missing or no whole one ends without a verdict, in one line."""
    write(tmp_path, export(tmp_path, TWO), SAMPLES, limits(a=0.1, b=0.1).settings())
    if damage == "removed":
        (tmp_path / lost).unlink()
    else:
        (tmp_path / lost).write_bytes((tmp_path / lost).read_bytes()[:100])
    found = ran(tmp_path, "--provider", "cpu")
    assert (2, 1) == (found.code, len(found.lines))


GELU = """(float[2,8] x) => (float[2,8] y)
  <float r = {1.41421356}, float one = {1}, float half = {0.5}> {
  d = Div(x, r) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half) }"""
APPROXIMATE = "optimization.enable_gelu_approximation"


def test_the_options_that_matter_are_named(tmp_path: Path) -> None:
    """Where the library's own options fail, and not for TF32, all of ours are told."""
    options = replace(OPTIONS, session_config={**AS_WRITTEN, APPROXIMATE: "1"})
    x = 2 * normal(2, 8)
    approximate = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    judge = Judge(
        samples=[{"x": x}],
        reference=[{"y": approximate}],
        limits=limits(y=1e-5).settings(),
        backend="emulated",
        options=options,
    )
    write_deployed(RunFolder(tmp_path), export(tmp_path, GELU), judge)
    found = ran(tmp_path, "--provider", "cpu", "--library-defaults")
    assert (0, "pass") == (found.code, found.told["outcome"])
    told = found.told["library_defaults"]
    assert "fail" == told["outcome"] and f"{APPROXIMATE}=1" in told["options"]
    assert f"{APPROXIMATE}=1" in found.lines[-1]


def test_own_options_that_end_the_process_cost_no_verdict(tmp_path: Path) -> None:
    """It is written before they are tried, with the options that it was made by."""
    write(tmp_path, export(tmp_path, TWO), SAMPLES, limits(a=1e-2, b=1e-2).settings())
    script = tmp_path / RUN_SCRIPT
    text, main, call = script.read_text().partition('if __name__ == "__main__":')
    script.write_text(f"{text}def by_defaults(*_): os.kill(os.getpid(), 11)\n\n\n{main}{call}")
    found = ran(tmp_path, "--provider", "cpu", "--library-defaults")
    assert (-signal.SIGSEGV, "pass") == (found.code, found.told["outcome"])
    assert "broken" == found.told["library_defaults"]["outcome"]
    assert any("disabled_optimizers" in each for each in found.told["library_defaults"]["options"])
    script.write_text(f"{text}def by_defaults(*_): raise OSError\n\n\n{main}{call}")
    found = ran(tmp_path, "--provider", "cpu", "--library-defaults")
    assert (2, None) == (found.code, found.told["library_defaults"])


def test_a_graph_that_a_fusion_breaks_opens_by_ours_alone(tmp_path: Path) -> None:
    """What had to be switched off is off in the script; the library's own options do not open."""
    path = save(broken_norm(), tmp_path)
    model = load_model(path)
    written = Export(
        model=model,
        kept=model.table.names,
        pair=Pair(low="fp16", high="fp32"),
        settings=EngineSettings(),
    )
    opened = Opener(providers=[CPU], profiles=tmp_path / "profile").open(path)
    options = replace(OPTIONS, disabled_optimizers=opened.opening.disabled)
    x = normal(8)
    judge = Judge(
        samples=[{"x": x}],
        reference=[{"y": (x - x.mean()) / np.sqrt(x.var() + 1e-5)}],
        limits=limits(y=1e-4).settings(),
        backend="onnxruntime",
        options=options,
    )
    write_deployed(RunFolder(tmp_path), written, judge)
    found = ran(tmp_path, "--provider", "cpu", "--library-defaults")
    assert 0 == found.code
    assert found.lines[-2].startswith("with ONNX Runtime's own options the model does not open: ")
    cure = "disabled_optimizers as in run_onnxruntime.py"
    assert cure in found.told["library_defaults"]["options"]


METRICS: tuple[tuple[str, float], ...] = (
    *(("elementwise", 1e-2), ("max", 1e-2), ("mean", 1e-2), ("quantile", 1e-2)),
    *(("l2", 0.1), ("cosine", 1e-3), ("psnr", 30.0), ("snr", 30.0)),
)


OTHERS = nightly(1e-4, 0.3)


@pytest.mark.parametrize(("metric", "limit"), METRICS)
@pytest.mark.parametrize("off", [0.0101, *OTHERS])
def test_metrics_are_the_comparators(
    metric: str, limit: float, off: float, tmp_path: Path
) -> None:
    """Verdict and error of each metric are those of the run's own judge."""
    judge = limits(metric, a=limit, b=limit)
    written = export(tmp_path, TWO)
    write(tmp_path, written, SAMPLES, judge.settings(), off=off)
    found = ran(tmp_path, "--provider", "cpu")
    session = Session(written.model.proto, written.model.weights)
    outputs = [session.run(feed) for feed in SAMPLES]
    wanted = [{n: a + np.float32(off) for n, a in each.items()} for each in outputs]
    expected = judge.judge(outputs, wanted)
    assert (expected.verdict is Verdict.PASS) == (found.code == 0)
    assert pytest.approx(expected.error, rel=1e-4, abs=1e-7) == max(found.told["errors"].values())


@pytest.mark.parametrize(("share", "wrong", "code"), [(0.0, 0, 0), (0.0, 1, 1), (0.25, 1, 0)])
def test_classes_are_counted(share: float, wrong: int, code: int, tmp_path: Path) -> None:
    """Outputs that are classes must be equal, but for the share that may differ."""
    written = export(tmp_path, "(float[4,3] x) => (int64[4,1] k) { k = ArgMax<axis = 1>(x) }")
    x = normal(4, 3)
    classes = x.argmax(axis=1, keepdims=True)
    classes[:wrong] += 1
    judge = Judge(
        samples=[{"x": x}],
        reference=[{"k": classes}],
        limits={"metric": "elementwise", "atol": {}, "rtol": {}, "classes": {"k": share}},
        backend="emulated",
        options=OPTIONS,
    )
    write_deployed(RunFolder(tmp_path), written, judge)
    found = ran(tmp_path, "--provider", "cpu")
    assert code == found.code, found.lines
    assert (wrong / 4 if share else wrong) == found.told["errors"]["k"]


def test_a_check_of_the_users_own(tmp_path: Path) -> None:
    """The user's function judges, where its file lies."""
    file = tmp_path / "check.py"
    worst = "max(abs(a['a'] - b['a']).max() for a, b in zip(o, r))"
    file.write_text(f"def worst(o, r):\n    return {worst}\n")
    settings = {"check": f"{file}:worst", "tolerance": 1e-2}
    for off, code in ((0.0, 0), (0.02, 1)):
        write(tmp_path, export(tmp_path, TWO), SAMPLES, settings, off=off)
        found = ran(tmp_path, "--provider", "cpu")
        assert code == found.code
        assert "worst(): error " in found.lines[0]
    file.unlink()
    assert 2 == ran(tmp_path, "--provider", "cpu").code


def test_a_check_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it empties or changes is read again, and what is not finite it is not asked about."""
    file = tmp_path / "check.py"
    body = "    error = abs(o[0]['a'] - r[0]['a']).max()\n    r[0]['a'][:] = o.pop()['a']\n"
    file.write_text(f"def worst(o, r):\n{body}    return error\n")
    limits = {"check": f"{file}:worst", "tolerance": 1e-2}
    monkeypatch.setattr(script, "SETTINGS", {"limits": limits})
    outputs, wanted = [{"a": np.ones(2)}], [{"a": np.zeros(2)}]
    for _ in range(2):
        assert 1.0 == script.by_check(outputs, wanted).error
    file.write_text("def worst(o, r):\n    raise ValueError\n")
    assert math.inf == script.by_check([{"a": np.full(2, np.nan)}], wanted).error


@pytest.mark.parametrize(
    "line",
    ["raise SystemExit(0)", "raise KeyboardInterrupt", "return 10**400", "return 'low'", "1 / 0"],
)
def test_a_check_that_fails_judges_nothing(line: str, tmp_path: Path) -> None:
    """Whatever it raises or returns is one line and exit code 2, never that of a verdict."""
    file = tmp_path / "check.py"
    file.write_text(f"def worst(o, r):\n    {line}\n")
    settings = {"check": f"{file}:worst", "tolerance": 1e-2}
    write(tmp_path, export(tmp_path, TWO), SAMPLES, settings, off=0.0)
    found = ran(tmp_path, "--provider", "cpu")
    assert (2, 1) == (found.code, len(found.lines))
    assert found.lines[0].startswith(f"not judged: the check {file} does not run: ")
    assert "not_judged" == found.told["outcome"]


def test_the_script_needs_numpy_alone(tmp_path: Path) -> None:
    """What is written imports nothing of this package: the target may not have it."""
    path = tmp_path / "m.onnx"
    onnx.save(chain(["a", "b"]), path)
    judge = Judge(samples=[], reference=[], limits={}, backend="emulated", options=OPTIONS)
    text = write_run_script(export_of(path, ["a"]), judge)
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(text))
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    assert {"numpy", "onnxruntime"} == imported - sys.stdlib_module_names
    # Targets such as a Jetson have an old Python.
    _, oldest = vermin.detect(text)
    assert oldest <= (3, 8)


@pytest.mark.parametrize("provider", ["tensorrt", "rtx", "cuda"])
def test_no_provider_stands_in_for_another(tmp_path: Path, provider: str) -> None:
    """The CPU would compute 16 bits in FP32 and pass; what is not there judges nothing."""
    settings = limits(a=1e-2, b=0.5).settings()
    write(tmp_path, export(tmp_path, TWO, kept=False), SAMPLES, settings)
    found = ran(tmp_path, "--provider", provider)
    assert 2 == found.code
    assert f"has no {script.PROVIDERS[provider]}" in found.lines[-1]


def test_defaults_are_those_of_the_file_s_own_provider(tmp_path: Path) -> None:
    """On another one TF32 is off by the environment, which is no default."""
    settings = limits(a=1e-2, b=0.5).settings()
    write(tmp_path, export(tmp_path, TWO, kept=False), SAMPLES, settings)
    outcome = ran(tmp_path, "--provider", "tensorrt", "--library-defaults")
    assert 2 == outcome.code
    assert "the provider that the file was written for" in outcome.lines[-1]


def test_an_option_of_a_provider_has_a_value(tmp_path: Path) -> None:
    """A key alone is told in one line, before anything opens."""
    write(tmp_path, export(tmp_path, TWO), SAMPLES, limits(a=1e-2, b=0.5).settings())
    found = ran(tmp_path, "--provider", "cpu", "--provider-option", "trt_fp16_enable")
    assert (2, ["not judged: --provider-option takes KEY=VALUE"]) == (found.code, found.lines)


def test_a_function_loops_as_in_the_search(tmp_path: Path) -> None:
    """It may write into its inputs, return lists, and swallow the error of a step with NaN."""
    (tmp_path / "loop.py").write_text(
        "def own(run, inputs):\n"
        "    inputs['x'] += 1\n"
        "    try:\n"
        "        return {'y': run(inputs)['y'].tolist()}\n"
        "    except Exception:\n"
        "        return {'y': [0.0]}\n"
    )
    loop = {"script": str(tmp_path / "loop.py"), "function": "own"}
    feed, own = {"x": np.ones(1, np.float32)}, script.users_function
    outputs = run_sample(lambda feed: {"y": feed["x"]}, feed, loop, own)
    assert ([2.0], [1.0]) == (outputs["y"].tolist(), feed["x"].tolist())
    outputs = run_sample(lambda feed: {"y": feed["x"] * np.nan}, feed, loop, own)
    assert np.isnan(outputs["y"]).all()
    with pytest.raises(KeyError, match="nothing"):
        run_sample(lambda feed: {"y": feed["nothing"]}, feed, loop, own)
