"""Starting is instant: nothing heavy is imported before a command needs it."""

import re
import subprocess
import sys
from ast import literal_eval

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


def test_help_is_instant() -> None:
    """--help, with all that it imports, calls functions 155,000 times, which takes 0.3 s."""
    command = [sys.executable, "-m", "cProfile", "-m", "precision_bisect", "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    (calls,) = re.findall(r"^ *(\d+) function calls", ran.stdout, re.M)
    assert int(calls) < 250_000
