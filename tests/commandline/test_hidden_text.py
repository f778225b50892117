"""Names that hide or turn text, in all that a run writes and prints."""

import json
import unicodedata
from pathlib import Path

import onnx
import pytest

import tiny
from precision_bisect.commandline.main import main

HIDDEN = "\x7f\x85\x9b31m\u202e\u2066\u200f\u061c\u200b\ufeff\U000e0041"
TEXTS = (".json", ".jsonl", ".html", ".txt", ".sh", ".py")


def hidden(text: str) -> set[str]:
    """Return the controls and format characters of a text, line breaks apart."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t\r"}


def test_nothing_hidden_is_written_or_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """DEL, C1 controls and bidi overrides of a model's names are escaped, and read back whole."""
    monkeypatch.chdir(tmp_path)
    model = onnx.load(tiny.write_with_samples(tmp_path))
    for node in model.graph.node:
        node.name += HIDDEN
    onnx.save(model, "tiny.onnx")
    asked = ["tiny.onnx", "--inputs", "inputs.npz", "--threads", "1", "--out", "run"]
    commands = [
        ["layers", "tiny.onnx"],
        ["layers", "tiny.onnx", "--json"],
        [*asked, "--json"],
        ["report", "run", "--json"],
        ["status", "run"],
        ["status", "run", "--json"],
        ["show", "run"],
        ["explain", "run", "--json"],
        ["explain", "run"],
        ["compare", "run", "run", "--json"],
        ["export", "tiny.onnx", "--plan", "run"],
    ]
    for command in commands:
        assert 0 == main(command), command
        printed = capsys.readouterr()
        assert set() == hidden(printed.out + printed.err), command
    for path in sorted(Path("run").rglob("*")):
        if path.suffix in TEXTS:
            assert set() == hidden(path.read_text(encoding="utf-8")), path
    kept = json.loads(Path("run/result.json").read_text())["kept"]
    assert [f"{name}{HIDDEN}" for name in tiny.KEPT] == kept
