"""Writes docs/mistakes.md, what typical mistakes are answered: python docs/make_mistakes.py."""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx.parser

PAGE = Path(__file__).with_name("mistakes.md")
WIDTH = "100"
_MODEL = """
<ir_version: 9, opset_import: ["" : 17]>
tiny (float[1, 8] image) => (float[1, 8] denoised) {
    ["/norm/Pow"] square = Mul (image, image)
    ["/norm/Sqrt"] denoised = Sqrt (square)
}
"""
_HEAD = """\
# Typical mistakes

What `precision-bisect` answers to each. `python docs/make_mistakes.py` writes this page
by running every command.
"""
MISTAKES = (
    ("No model", ""),
    ("A command that does not exist", "explian model.onnx"),
    ("A flag that does not exist", "model.onnx --tolerance 1e-2"),
    ("A comma in a number", "model.onnx --tol 0,01"),
    ("A model that is not there", "modle.onnx"),
    ("A model that is not ONNX", "model.pt"),
    ("Inputs that are not there", "model.onnx --inputs inptus"),
    ("A folder without inputs", "model.onnx --inputs empty"),
    ("A name that is no input of the model", "model.onnx --inputs wrong_name.npz"),
    ("Inputs of another shape", "model.onnx --inputs wrong_shape.npz"),
    ("Inputs of another kind", "model.onnx --inputs image.png"),
    ("A limit for an output that is not there", "model.onnx --inputs inputs --tol logits=1e-2"),
    ("A type that does not exist", "model.onnx --low fp64"),
    ("The same type twice", "model.onnx --low fp16 --high fp16"),
    ("A time with a space", "model.onnx --max-time '2 hours'"),
    ("A strategy that does not exist", "model.onnx --strategy guidde"),
    ("A function that the script lacks", "model.onnx --check metric.py:accuracy"),
    ("A layer that does not exist", "explain model.onnx /norm/Pwo --inputs inputs"),
    ("A run that was not made", "verify model.onnx"),
    ("A folder that is no run", "report inputs"),
)


def page() -> str:
    """Return the page."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _prepare(folder)
        return _HEAD + "".join(
            f"\n**{what}**\n\n```\n{_answer(folder, command)}\n```\n" for what, command in MISTAKES
        )


def _prepare(folder: Path) -> None:
    """Write the files that the commands name."""
    onnx.save(onnx.parser.parse_model(_MODEL), folder / "model.onnx")
    (folder / "model.pt").write_bytes(b"PK\x03\x04 weights")
    (folder / "metric.py").write_text("def drop(outputs, reference):\n    return 0.0\n")
    image = np.ones((1, 8), np.float32)
    for name in ("inputs", "empty"):
        (folder / name).mkdir()
    np.savez(folder / "inputs" / "0.npz", image=image)
    np.savez(folder / "wrong_name.npz", input=image)
    np.savez(folder / "wrong_shape.npz", image=np.ones((2, 3), np.float32))
    (folder / "image.png").write_bytes(b"\x89PNG")


def _answer(folder: Path, command: str) -> str:
    """Run a command; return it with what it says and its exit code."""
    ran = subprocess.run(
        [sys.executable, "-m", "precision_bisect", *shlex.split(command)],
        cwd=folder,
        env={**os.environ, "COLUMNS": WIDTH},
        capture_output=True,
        text=True,
        check=False,
    )
    said = (ran.stdout + ran.stderr).strip()
    typed = f"$ precision-bisect {command}".rstrip()
    return f"{typed}\n{said}\n[exit code {ran.returncode}]"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
