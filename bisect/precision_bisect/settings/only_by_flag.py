"""What a file that somebody else may have written must not decide: what code runs, and where."""

from collections.abc import Mapping

from precision_bisect.settings.check_words import read_check
from precision_bisect.settings.engine_settings import BACKEND_OPTION
from precision_bisect.settings.reading import CONFIG_SCRIPT, CUSTOM_OPS, PLUGINS
from precision_bisect.settings.worker_options import DEFAULT_EXECUTOR

ONLY_BY_FLAG: Mapping[str, str] = {
    "check": "--check",
    "loop": "--loop",
    "inputs": "--inputs",
    "reference": "--reference",
    "executor": "--executor",
    "cluster": "--cluster",
    "on_finish": "--on-finish",
    "optuna_storage": "--optuna-storage",
    "plugins": PLUGINS,
    "ort_custom_ops": CUSTOM_OPS,
    "config_script": CONFIG_SCRIPT,
    "backend_options": BACKEND_OPTION,
}
"""Options that may name code, another machine or a place to write to, by their flag."""


def reaches_out(name: str, value: object) -> bool:
    """Tell whether the value of such an option does."""
    if name == "check":
        return isinstance(value, str) and read_check(value).script is not None
    if name in ("inputs", "reference"):
        return ".py" in str(value).lower()
    return bool(value) and (name, value) != ("executor", DEFAULT_EXECUTOR)
