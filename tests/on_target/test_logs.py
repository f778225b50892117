"""What a log of trtexec tells of why a call failed."""

from pathlib import Path

import pytest

from precision_bisect.backends.trtexec.trtexec_results import trouble

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
