"""What a log of trtexec tells of why a call failed."""

from itertools import product
from pathlib import Path

import pytest

from exports_models import SHELLS
from fake_board import judge, shell_tool
from precision_bisect.backends.trtexec.trtexec_results import failed_build, trouble
from precision_bisect.commandline.main import main

SEGFAULT = "its process ended by SIGSEGV"
STAMP = "[11/26/2026-10:00:00]"
FRAME = f"""{STAMP} [E] [TRT] ModelImporter.cpp:949: While parsing node number 3 [Foo -> "y"]:
{STAMP} [E] [TRT] ModelImporter.cpp:950: --- Begin node ---
op_type: "Foo"
{STAMP} [E] [TRT] ModelImporter.cpp:953: ERROR: m.cpp:170 In function parseNode:
[8] No importer registered for op: Foo
{STAMP} [E] Failed to parse onnx file
"""


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (f"{STAMP} [I] Parsing\n{STAMP} [E] Error[10]: no kernel\n&&&& FAILED\n", "no kernel"),
        (FRAME, '[Foo -> "y"]: parseNode: No importer registered for op: Foo'),
        ("x" * 200_000 + f"\n{STAMP} [E] late\n", "late"),
        ("trtexec: not found\n", "not found"),
        ("", ""),
    ],
)
def test_a_log_says_why(log: str, why: str, tmp_path: Path) -> None:
    """The importer's frame is none, an error may come late, and a shell has its own words."""
    (tmp_path / "log").write_text(log)
    assert trouble(tmp_path / "log").endswith(why)
    assert bool(why) == bool(trouble(tmp_path / "log"))


def test_a_tool_that_dies_is_told_by_its_signal(
    exchanged: tuple[Path, Path], tmp_path: Path
) -> None:
    """It cannot say so itself: the script does, in the log, which is read back."""
    folder = tmp_path / "board"
    assert 0 == main(["target", str(exchanged[0]), "--write", str(folder)])
    begins = "case $* in *--help) echo '[TensorRT v101300] --stronglyTyped'; exit;; esac\n"
    begins += "echo '&&&& RUNNING'; "
    for shell, (ends, said) in product(
        SHELLS, {"exit 255": "it does not say why", "kill -s SEGV $$": SEGFAULT}.items()
    ):
        ran = judge(folder, shell_tool(tmp_path / shell / ends[:4], f"{begins}{ends}"), shell)
        assert 1 == ran.returncode
        assert f"  failed: {said} (" in ran.stderr
    (log, *_) = folder.rglob("build.log")
    failed = failed_build(log)
    assert failed is not None and SEGFAULT == failed.text
