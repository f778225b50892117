"""Judges model.mixed.onnx with ONNX Runtime: stored inputs, stored FP32 outputs, the run's limits.

Written by precision-bisect, which copies this file and fills in SETTINGS. It needs this folder,
onnxruntime-gpu and numpy.

    python run_onnxruntime.py                      with the options in SETTINGS
    python run_onnxruntime.py --library-defaults   and with none; names the option that matters
    python run_onnxruntime.py --provider tensorrt  on another provider: tensorrt, rtx, cuda, cpu

The CPU does not judge FP16 and BF16.

Exit codes: 0 every output is within its limits; 1 one is not; 2 it cannot be judged here.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import importlib.util
import io
import json
import math
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from precision_bisect.judging.comparators.matched_boxes import Found
from precision_bisect.judging.comparators.metrics import CannotJudge, multiple
from precision_bisect.judging.comparators.task_checks import judge_task
from precision_bisect.judging.inputs.closed_loop import all_finite, run_sample

SETTINGS: dict[str, Any] = {}
"""What this file was written for.

`judged_by` is the backend of the run. `provider` and all up to `disabled_optimizers` are how the
model is opened; `limits` are the run's. `loop` runs each sample, if there is any. `low_layers`
compute in 16 bits.
"""

HERE = Path(__file__).parent
CPU = "CPUExecutionProvider"
PROVIDERS = {
    "tensorrt": "TensorrtExecutionProvider",
    "rtx": "NvTensorRTRTXExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "cpu": CPU,
}
"""By the names that are given. An engine of the first two is built as the session opens."""
TF32_OFF = "NVIDIA_TF32_OVERRIDE"
"""What takes TF32 from TensorRT's provider, which has no option for it, where it is 0."""


class Judged(NamedTuple):
    """One output, or the user's check: its error, and the limit on the same scale."""

    name: str
    error: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the error is within the limit; NaN is not."""
        return self.error <= self.limit

    def line(self) -> str:
        """Return what is printed of it."""
        word = "pass" if self.passed else "FAIL"
        return f"{word}  {self.name}: error {self.error:.4g}, limit {self.limit:.4g}"


class How(NamedTuple):
    """How a session is opened."""

    provider_options: dict[str, str]
    session_config: dict[str, str]
    level: str
    disabled: tuple[str, ...]

    def parts(self) -> dict[str, str]:
        """Return each option by its key, as people write it."""
        named = {**self.provider_options, **self.session_config}
        parts = {key: f"{key}={value}" for key, value in named.items()}
        if self.disabled or self.level != DEFAULTS.level:
            parts[OPTIMIZERS] = f"{OPTIMIZERS} as in {Path(__file__).name}"
        return parts


OPTIMIZERS = "disabled_optimizers"
TF32 = "use_tf32"
DEFAULTS = How({}, {}, "ORT_ENABLE_ALL", ())
"""ONNX Runtime's own."""


def main(arguments: list[str]) -> int:
    """Judge, say what came of it, and return the exit code."""
    parser = argparse.ArgumentParser(
        description="Judge model.mixed.onnx on this machine by stored inputs and outputs.",
        epilog="exit codes: 0 within the limits; 1 not; 2 cannot be judged here",
    )
    parser.add_argument(
        "--library-defaults",
        action="store_true",
        help="also judge with ONNX Runtime's own options, and name the option that matters",
    )
    parser.add_argument("--provider", choices=PROVIDERS, help="run on another provider")
    parser.add_argument(
        "--provider-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the other provider, such as trt_engine_cache_enable=1",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcome to a file")
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {"outcome": "not_judged", "message": "", "errors": {}}
    report["library_defaults"] = None
    file = options.json or Path(os.devnull)
    try:
        judged = judge(options.provider, options.provider_option, options.library_defaults, report)
        if options.library_defaults:
            # Written before, as they may end the process.
            cure = list(judged[0].parts().values()) * judged[1]
            report["library_defaults"] = {"outcome": "broken", "errors": {}, "options": cure}
            file.write_text(json.dumps(report), encoding="utf-8")
            report["library_defaults"] = by_defaults(*judged)
    except Exception as error:
        # Of an exception that nobody expects the class says more than its words.
        expected = isinstance(error, CannotJudge)
        why = one_line(error) if expected else f"{type(error).__name__}: {one_line(error)}"
        report["outcome"], report["message"] = "not_judged", why
        report["library_defaults"] = None
        say(f"not judged: {why}")
    file.write_text(json.dumps(report), encoding="utf-8")
    return {"pass": 0, "fail": 1}.get(report["outcome"], 2)


def judge(
    other: str | None, own_options: list[str], with_defaults: bool, report: dict[str, Any]
) -> tuple[How, bool, str, list[Any], list[Any]]:
    """Run the model and compare; `report` takes what came of it. Raises CannotJudge.

    It runs on the `other` provider, if one is named, with `own_options`. Returns what
    `by_defaults` takes.
    """
    feeds, wanted = stored()
    ours = How(
        dict(SETTINGS["provider_options"]),
        dict(SETTINGS["session_config"]),
        SETTINGS["graph_optimization_level"],
        tuple(SETTINGS["disabled_optimizers"]),
    )
    provider = PROVIDERS[other] if other else SETTINGS["provider"]
    # Options are of a provider, and another one refuses those that it does not know.
    if provider != SETTINGS["provider"]:
        if ours.provider_options.get(TF32) == "0":
            if with_defaults and provider != CPU:
                raise CannotJudge(
                    "--library-defaults is for the provider that the file was written for"
                )
            os.environ.setdefault(TF32_OFF, "0")
        ours = ours._replace(provider_options={})
    if any("=" not in option for option in own_options):
        raise CannotJudge("--provider-option takes KEY=VALUE")
    given = dict(option.split("=", 1) for option in own_options)
    ours = ours._replace(provider_options={**ours.provider_options, **given})
    judged = evaluate(ours, provider, feeds, wanted)
    for judgement in judged:
        say(judgement.line())
    report["errors"] = {judgement.name: judgement.error for judgement in judged}
    # Errors are shown even so; only the verdict is withheld.
    if provider == CPU and SETTINGS["low_layers"]:
        raise CannotJudge(
            "the CPU provider computes FP16 and BF16 in FP32, so this says nothing about them; "
            "run it where onnxruntime-gpu finds a GPU"
        )
    passed = all(judgement.passed for judgement in judged)
    report["outcome"] = "pass" if passed else "fail"
    report["message"] = f"onnxruntime {runtime().__version__}, {provider}, samples: {len(feeds)}"
    say(f"{report['outcome']}: {report['message']}")
    return ours, passed, provider, feeds, wanted


def by_defaults(
    ours: How, passed: bool, provider: str, feeds: list[Any], wanted: list[Any]
) -> dict[str, Any]:
    """Judge with ONNX Runtime's own options; return what came of it, and what options cure it.

    TF32, which rounds FP32 to 10 bits, is tried by itself; else it takes all of the options.
    """
    report: dict[str, Any] = {"outcome": "fail", "errors": {}, "options": []}
    try:
        judged = evaluate(DEFAULTS, provider, feeds, wanted)
        report["errors"] = {judgement.name: judgement.error for judgement in judged}
        report["outcome"] = "pass" if all(judgement.passed for judgement in judged) else "fail"
    except CannotJudge as why:
        say(f"with ONNX Runtime's own options {why}")
    if passed and report["outcome"] == "fail":
        report["options"] = list(ours.parts().values())
        exact = {
            key: ours.provider_options[key] for key in (TF32,) if key in ours.provider_options
        }
        # Without a result for TF32 alone, all of the options remain the cure.
        with contextlib.suppress(CannotJudge):
            again = evaluate(DEFAULTS._replace(provider_options=exact), provider, feeds, wanted)
            if exact and all(judgement.passed for judgement in again):
                report["options"] = [ours.parts()[TF32]]
    worst = f": error {max(report['errors'].values()):.4g}" if report["errors"] else ""
    hint = f"; set {' and '.join(report['options'])}" if report["options"] else ""
    say(f"{report['outcome']} with ONNX Runtime's own options{worst}{hint}")
    return report


def runtime() -> Any:
    """Return onnxruntime. Raises CannotJudge where it is missing."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise CannotJudge("onnxruntime is missing: pip install onnxruntime-gpu") from error
    return onnxruntime


def evaluate(how: How, provider: str, feeds: list[Any], wanted: list[Any]) -> list[Judged]:
    """Open the model, run it on every sample, and compare. Raises CannotJudge."""
    session = opened(how, provider)
    names = [output.name for output in session.get_outputs()]
    outputs = []

    def run(inputs: Any) -> dict[str, Any]:
        return dict(zip(names, session.run(names, inputs)))  # noqa: B905 - Python 3.8

    for feed in feeds:
        try:
            outputs.append(run_sample(run, feed, SETTINGS["loop"], users_function))
        except Exception as error:
            raise CannotJudge(f"the run failed: {one_line(error)}") from error
    if "check" in SETTINGS["limits"]:
        return [by_check(outputs, wanted)]
    return [by_metric(name, outputs, wanted) for name in names]


def users_function(file: str, name: str) -> Any:
    """Return a function of the user's script, which may import what lies beside it."""
    sys.path.insert(0, str(Path(file).parent))
    spec = importlib.util.spec_from_file_location("precision_bisect_script", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def opened(how: How, provider: str) -> Any:
    """Return a session on the provider. Raises CannotJudge where there is none."""
    ort = runtime()
    if provider != CPU and hasattr(ort, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):
            ort.preload_dlls()
    if provider not in ort.get_available_providers():
        raise CannotJudge(
            f"this onnxruntime ({ort.__version__}) has no {provider}: pip install onnxruntime-gpu "
            "on a machine with a GPU; a CPU would compute FP16 in FP32"
        )
    # cuDNN refuses single algorithms aloud; others are taken then.
    ort.set_default_logger_severity(4)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for path in SETTINGS["custom_ops"]:
        try:
            options.register_custom_ops_library(path)
        except Exception as error:
            raise CannotJudge(f"the operators of {path} do not load: {one_line(error)}") from error
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, how.level)
    for key, value in how.session_config.items():
        options.add_session_config_entry(key, value)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    try:
        session = ort.InferenceSession(
            str(HERE / SETTINGS["model"]),
            options,
            providers=[(provider, how.provider_options)],
            enable_fallback=0,
            disabled_optimizers=set(how.disabled),
        )
    except Exception as error:
        raise CannotJudge(f"the model does not open: {one_line(error)}") from error
    if session.get_providers()[0] != provider:
        raise CannotJudge(f"{provider} does not load here: check the driver, CUDA and cuDNN")
    refuse_strays(session, provider)
    return session


def refuse_strays(session: Any, provider: str) -> None:
    """Raise CannotJudge where layers of 16 bits are on the CPU, which computes them in FP32."""
    if provider == CPU or not hasattr(session, "get_provider_graph_assignment_info"):
        return
    there = {
        node.name
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name == CPU
        for node in part.get_nodes()
    }
    strays = [name for name in SETTINGS["low_layers"] if name in there]
    if strays:
        more = f" and {len(strays) - 1} more" if len(strays) > 1 else ""
        raise CannotJudge(f"{strays[0]!r}{more} would run on the CPU, in FP32 instead of 16 bits")


def stored() -> tuple[list[Any], list[Any]]:
    """Return the stored inputs and outputs of each sample. Raises CannotJudge."""
    try:
        feeds = read(HERE / SETTINGS["inputs"])
        (_, iterations), *_ = read(HERE / SETTINGS["outputs"])["lst"]
        return feeds, [iteration["outputs"] for iteration in iterations]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CannotJudge(f"the stored samples cannot be read: {one_line(error)}") from error


def read(path: Path) -> Any:
    """Read Polygraphy's JSON, arrays as arrays."""

    def revived(fields: dict[str, Any]) -> Any:
        kind = fields.get("polygraphy_class")
        if kind == "ndarray":
            return np.load(io.BytesIO(base64.b64decode(fields["array"])), allow_pickle=False)
        return fields["values"] if kind == "LazyArray" else fields

    return json.loads(path.read_text(encoding="utf-8"), object_hook=revived)


def by_check(outputs: list[Any], wanted: list[Any]) -> Judged:
    """Judge by a check, the user's or one of ours. Raises CannotJudge where it does not run."""
    file, _, name = SETTINGS["limits"]["check"].rpartition(":")
    limit = SETTINGS["limits"]["tolerance"]
    finite = all(map(all_finite, outputs))
    if finite and not file:
        chosen = SETTINGS["limits"]["outputs"]
        both = ([{n: s[n] for n in chosen} for s in samples] for samples in (outputs, wanted))
        with np.errstate(all="ignore"):
            outcome: Found = judge_task(name, SETTINGS["limits"]["forms"], *both)
        return Judged(name, outcome.error, limit)
    if not finite:
        return Judged(f"{name}()", math.inf, limit or 0.0)
    # Copies: other judgements read the arrays, too.
    copies = (
        [{n: a.copy() for n, a in s.items()} for s in samples] for samples in (outputs, wanted)
    )
    try:
        value = users_function(file, name)(*copies)
        figure = 0.0 if isinstance(value, (bool, np.bool_)) else float(value)
    except BaseException as error:  # the user's own code may raise anything
        raise CannotJudge(f"the check {file} does not run: {one_line(error)}") from error
    if isinstance(value, (bool, np.bool_)):
        return Judged(f"{name}()", 0.0 if value else math.inf, limit or 0.0)
    return Judged(f"{name}()", figure, math.nan if limit is None else limit)


def by_metric(name: str, outputs: list[Any], wanted: list[Any]) -> Judged:
    """Judge one output of all samples."""
    limits = SETTINGS["limits"]
    if name in limits.get("classes", {}):
        return by_share(name, limits["classes"][name], outputs, wanted)
    atol = limits["atol"][name]
    rtol = limits["rtol"][name] if "rtol" in limits else atol
    with np.errstate(all="ignore"):
        worst = max(
            multiple(limits, atol, rtol, got[name], want[name])
            for got, want in zip(outputs, wanted)  # noqa: B905 - Python 3.8
        )
    single = {limit for limit in (atol, rtol) if limit}
    scale = single.pop() if len(single) == 1 else 1.0
    return Judged(name, worst * scale, scale)


def by_share(name: str, share: float, outputs: list[Any], wanted: list[Any]) -> Judged:
    """Judge classes: how many differ in the worst sample; their share where some may."""
    counts = []
    for got, want in zip(outputs, wanted):  # noqa: B905 - Python 3.8
        alike = got[name].shape == want[name].shape
        differing = float(np.count_nonzero(got[name] != want[name])) if alike else math.inf
        counts.append(differing / want[name].size if share else differing)
    return Judged(name, max(counts), share)


def one_line(error: BaseException) -> str:
    """Return an error's text on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def say(text: str) -> None:
    """Print a line, whatever the terminal can show."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
