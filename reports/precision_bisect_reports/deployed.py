"""What the answer comes to where it is deployed, and the commands that judge it there."""

import shlex
from collections.abc import Iterable, Iterator, Mapping

from precision_bisect.errors import printable
from precision_bisect.runs.results.deployment import ByDefaults, Deployment, Recheck
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.runfolder import RUN_SCRIPT
from precision_bisect.settings.targets import TargetName

_ROUNDED = ("rounding", "cancellation", "indices")
"""Causes that more digits cure, which TF32 does not have."""


def deployed_rows(
    deployment: Deployment | None, causes: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Yield what the last check of the exported files found, each with a label.

    `causes` are those of the kept layers.
    """
    recheck = deployment.recheck if deployment else None
    if recheck is None:
        return
    yield "files" if recheck.outcome == "not_judged" else "deployed", _outcome(recheck)
    if recheck.library_defaults is not None:
        yield "defaults", _by_defaults(recheck.library_defaults, causes)


def _outcome(recheck: Recheck) -> str:
    error = "" if recheck.error is None else f": error {recheck.error:.4g}"
    match recheck.outcome:
        case "pass":
            return f"{RUN_SCRIPT} passes in a fresh process{error}"
        case "fail":
            return f"{RUN_SCRIPT} FAILS in a fresh process{error}; do not rely on this answer"
        case "broken":
            return f"the exported files do NOT fit together: {printable(recheck.message)}"
        case "not_judged":
            return printable(recheck.message)


def _by_defaults(found: ByDefaults, causes: Iterable[str]) -> str:
    """Say whether ONNX Runtime's own options keep the answer, and which of ours matters."""
    error = "" if found.error is None else f": error {found.error:.4g}"
    if found.outcome == "pass":
        return f"ONNX Runtime's own options pass, too{error}"
    cure = f"; set {' and '.join(map(printable, found.options))}" if found.options else ""
    tf32 = any(option.startswith("use_tf32=") for option in found.options)
    return f"ONNX Runtime's own options FAIL{error}{cure}{under_tf32(causes) if tf32 else ''}"


def kept_for_rounding(causes: Iterable[str]) -> int:
    """Return of how many layers TF32 takes what they are kept for."""
    return sum(cause in _ROUNDED for cause in causes)


def under_tf32(causes: Iterable[str]) -> str:
    """Say what TF32 makes of layers kept for their rounding, "" where there are none."""
    rounded = kept_for_rounding(causes)
    if not rounded:
        return ""
    layers = "the layer kept for rounding gains"
    if rounded > 1:
        layers = f"the {rounded} layers kept for rounding gain"
    return f"; under TF32 {layers} nothing"


def judging_steps(result: Result) -> Mapping[TargetName, str]:
    """Return the commands that judge an answer on targets where it may pass, for a shell.

    The target that was searched for comes first.
    """
    deployment, folder = result.deployment, result.out
    if deployment is None or folder is None:
        return {}
    steps: dict[TargetName, str] = {}
    if deployment.polygraphy is not None:
        there = shlex.quote(str(folder))
        steps["tensorrt"] = f"(cd {there} && {printable(deployment.polygraphy)})"
    steps["onnxruntime"] = f"python {shlex.quote(str(folder / RUN_SCRIPT))}"
    usable = [target for target in steps if target not in result.unusable]
    return {
        target: steps[target] for target in sorted(usable, key=lambda each: each != result.target)
    }
