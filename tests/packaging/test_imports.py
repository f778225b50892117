"""Starting is instant: nothing heavy is imported before a command needs it."""

import os
import subprocess
import sys
from ast import literal_eval

import pytest

HEAVY = {
    "PIL",
    "argcomplete",
    "distributed",
    "filelock",
    "loky",
    "msgspec",
    "numpy",
    "onnx",
    "onnxruntime",
    "optuna",
    "polygraphy",
    "psutil",
    "rich",
    "ml_dtypes",
    "torch",
    "tensorrt",
    "tensorrt_rtx",
}


COMMANDS = (
    *("batch", "layers", "verify", "export", "report", "status", "explain", "show", "compare"),
    *("curve", "doctor"),
)
LOADING = """
import sys
import precision_bisect
loaded = [("import", *sys.modules)]
from precision_bisect.commandline.main import main
for words in [["--version"], ["--help"], *([each, "--help"] for each in sys.argv[1:])]:
    try:
        main(words)
    except SystemExit:
        pass
    loaded.append((" ".join(words), *sys.modules))
print()
print(loaded)
"""


def test_no_heavy_module_is_loaded() -> None:
    """Import, --version and --help of each command load none of the heavy packages."""
    command = [sys.executable, "-c", LOADING, *COMMANDS]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    heavy = {
        what: HEAVY & {name.partition(".")[0] for name in modules}
        for what, *modules in literal_eval(ran.stdout.splitlines()[-1])
    }
    assert 3 + len(COMMANDS) == len(heavy)
    assert {} == {what: packages for what, packages in heavy.items() if packages}


@pytest.mark.usefixtures("cold")
def test_help_is_instant() -> None:
    """The quickest of five starts of --help takes less than 0.5 processor seconds, all in all.

    Beside busy neighbours it was seen to take 0.26 to 0.33.
    """
    seconds = []
    for _ in range(5):
        before = os.times()
        subprocess.run(
            [sys.executable, "-m", "precision_bisect", "--help"], check=True, capture_output=True
        )
        after = os.times()
        user_s = after.children_user - before.children_user
        seconds.append(user_s + after.children_system - before.children_system)
    assert min(seconds) < 0.5
