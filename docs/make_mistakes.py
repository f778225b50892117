"""Writes docs/mistakes.md, what typical mistakes are answered: python docs/make_mistakes.py."""

import os
import shlex
import tempfile
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import onnx.parser

from precision_bisect.commandline.main import main

PAGE = Path(__file__).with_name("mistakes.md")
WIDTH = "100"
_MODEL = """
<ir_version: 9, opset_import: ["" : 17]>
tiny (float[1, 8] image) => (float[1, 8] denoised) {
    ["/norm/Pow"] square = Mul (image, image)
    ["/norm/Sqrt"] denoised = Sqrt (square)
}
"""
_CHECKS = """
import numpy as np

def same(outputs, reference):
    return max(np.abs(r["denoised"] - r["denoised"]).max() for r in reference)

def score(outputs, reference):
    return np.mean([np.isclose(o["denoised"], r["denoised"]) for o, r in zip(outputs, reference)])
"""
_HEAD = """\
# Typical mistakes

What `precision-bisect` answers to each. `python docs/make_mistakes.py` writes this page
by running every command.
"""
BEGUN = "model.onnx --inputs inputs --tol 1e-2 --out run"
"""A run that some of the mistakes come after."""
MISTAKES = (
    ("No model", ""),
    ("A command that does not exist", "explian model.onnx"),
    ("A command for the search, which needs none", "find model.onnx"),
    ("A flag that does not exist", "model.onnx --tolerance 1e-2"),
    ("A type as a flag", "model.onnx --fp16"),
    ("A backend by another name", "model.onnx --backend trt"),
    ("A comma in a number", "model.onnx --tol 0,01"),
    ("A model that is not there", "modle.onnx"),
    ("A model that is not ONNX", "model.pt"),
    ("A model that is FP16 already", "half.onnx"),
    ("A model in training mode", "training.onnx --inputs inputs"),
    ("Inputs without their flag", "model.onnx inputs"),
    ("A name that is no input of the model", "model.onnx --inputs wrong_name.npz"),
    ("An array too many", "model.onnx --inputs extra.npz"),
    ("Several samples in one file", "model.onnx --inputs batch.npz"),
    ("Pixels from 0 to 255", "model.onnx --inputs pixels.npz"),
    ("A limit for an output that is not there", "model.onnx --inputs inputs --tol logits=1e-2"),
    (
        "A check that compares nothing",
        "model.onnx --inputs inputs --check check.py:same --tol 0.01",
    ),
    (
        "A score instead of an error",
        "model.onnx --inputs inputs --check check.py:score --tol 0.01",
    ),
    ("A layer that does not exist", "explain model.onnx norm/Pwo --inputs inputs"),
    ("A run that was not made", "verify model.onnx"),
    ("Another limit for a run that goes on", f"{BEGUN.replace('1e-2', '5e-3')} --resume"),
    ("No run named", "show"),
    ("A model instead of jobs", "batch model.onnx"),
)


def page() -> str:
    """Return the page, as wide as COLUMNS says."""
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
    half = onnx.parser.parse_model(_MODEL.replace("float[", "float16["))
    onnx.save(half, folder / "half.onnx")
    switched_on = "<bool training = {1}>\n{"
    dropout = _MODEL.replace("{", switched_on, 1).replace(
        "Sqrt (square)", "Dropout <seed = 1> (square, , training)"
    )
    onnx.save(onnx.parser.parse_model(dropout), folder / "training.onnx")
    (folder / "inputs").mkdir()
    image = np.linspace(0, 1, 8, dtype=np.float32)[None]
    np.savez(folder / "inputs" / "0.npz", image=image)
    np.savez(folder / "wrong_name.npz", input=image)
    np.savez(folder / "extra.npz", image=image, label=np.zeros(1))
    np.savez(folder / "batch.npz", image=np.tile(image, (16, 1)))
    np.savez(folder / "pixels.npz", image=image.astype(np.uint8))
    (folder / "check.py").write_text(_CHECKS)
    _answer(folder, BEGUN)


def _answer(folder: Path, command: str) -> str:
    """Run a command in this process; return it with what it says and its exit code."""
    with chdir(folder), redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as error:
        code = main(shlex.split(command))
    said = (out.getvalue() + error.getvalue()).strip()
    typed = f"$ precision-bisect {command}".rstrip()
    return f"{typed}\n{said}\n[exit code {code}]"


if __name__ == "__main__":
    os.environ["COLUMNS"] = WIDTH
    PAGE.write_text(page(), encoding="utf-8")
