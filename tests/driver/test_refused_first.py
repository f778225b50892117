"""What the model alone refuses: before any sample is read, and before anything is remarked."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precision_bisect
from models import parse, save
from precision_bisect.commandline.main import main
from precision_bisect.errors import ExitCode, PrecisionBisectError, UsageError
from precision_bisect.options import Options
from precision_bisect.pipeline.refusals import refuse_many
from precision_bisect.runs.monitoring.events import Event
from precision_bisect_strategies.exhaustive import MOST_LAYERS, Exhaustive

NOWHERE = "no such samples"
SCRIPT = "def same(outputs, reference):\n    return True\n"
ABS = "(float[1,4] x) => (float[1,4] y) { [a] p = Abs(x) [b] y = Abs(p) }"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"keep": ["LayerNormm"]}, "keep 'LayerNormm' matches no layer"),
    ({"low_only": ["nothing"]}, "low_only 'nothing' matches no layer"),
    ({"keep": ["."], "low_only": ["."]}, "keep and low_only both name"),
    ({"start": "nowhere.json"}, "nowhere.json does not exist"),
    ({"start": "x:fp32"}, "names no layer that is decided on"),
    ({"input_shapes": {"z": (1,)}, "inputs": None}, "input_shapes names 'z'"),
    ({"ranges": {"z": (0, 1)}}, "ranges names 'z'"),
    ({"scale": 0.5, "inputs": None}, "scale is for images"),
    ({"reference": Path("outputs.npz"), "inputs": None}, "reference is of samples"),
    ({"tol": {"z": 1e-2}}, "a tolerance is given for 'z'"),
    ({"check": "top1:z", "tol": 1e-2}, "is to judge 'z'"),
    ({"check": "check.py:same", "until": "curve", "tol": 1e-2, "risk": 0.1}, "has no use for"),
    ({"check": "check.py:same", "risk": 0.1, "tol": 1e-2}, "risk needs the error"),
    ({"check": "check.py:same", "until": "curve"}, "needs errors as figures"),
    ({"backend": "nothing"}, "there is no backend 'nothing'"),
    ({"backend": "emulated", "min_speedup": 2.0}, "the emulator has none"),
    ({"backend": "emulated", "keep_engines": True}, "the emulator builds none"),
    ({"backend": "emulated", "gpus": ("0",)}, "the emulator uses none"),
    ({"ladder": ("int8", "fp16", "fp32")}, "can run in int8"),
    ({"low": "int8"}, "can run in int8"),
]


@pytest.mark.parametrize(("asked", "said"), REFUSED)
def test_no_sample_is_read_for_what_the_model_refuses(
    asked: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples that are not there, or made up with a warning, are never come to."""
    monkeypatch.chdir(tmp_path)
    Path("check.py").write_text(SCRIPT, encoding="utf-8")
    model, events = save(parse(ABS), tmp_path), list[Event]()
    with pytest.raises(PrecisionBisectError) as refused:
        precision_bisect.find(model, **{"inputs": NOWHERE, "observer": events.append, **asked})
    assert said in str(refused.value)
    assert not events


@pytest.mark.parametrize(
    ("body", "nodes", "hint"),
    [
        (
            "(int64[4] x) => (int64[4] y) { p = Abs(x) q = Neg(p) b = Cast<to = 9>(q)"
            " y = Cast<to = 7>(b) }",
            "its outputs are not floating point (2), a cast: its type is its meaning (2)",
            "lists each with its reason",
        ),
        (
            "(double[4] x) => (double[4] y) { p = Abs(x) y = Neg(p) }",
            "computes in double precision (2)",
            "not a converted one",
        ),
    ],
)
def test_a_model_without_fp32_layers_says_what_it_has(
    body: str, nodes: str, hint: str, tmp_path: Path
) -> None:
    """The most frequent kinds of nodes, and where the file is a converted one, that."""
    with pytest.raises(PrecisionBisectError) as refused:
        precision_bisect.find(save(parse(body), tmp_path), out=tmp_path / "run")
    assert f"has no FP32 layers to decide on; its nodes: {nodes}" in str(refused.value)
    assert hint in refused.value.hint


def test_a_strategy_takes_as_many_layers_as_it_says() -> None:
    """The largest number is none too many; the error says both."""
    options, strategy = Options(model=Path("m.onnx")), Exhaustive()
    refuse_many(options, strategy, MOST_LAYERS)
    with pytest.raises(UsageError, match=r"at most 16 layers, m\.onnx has 17"):
        refuse_many(options, strategy, MOST_LAYERS + 1)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--opt-shapes", "x:1x4"], "a sample of 'x' has shape 2x4, outside 1x4 to 1x4; widen"),
        (["--opt-shapes", "x:1x5"], "1x5 is no shape of 'x'"),
        (["--opt-shapes", "x:1x4", "--max-shapes", "x:2x4"], ""),
    ],
)
def test_shapes_that_no_engine_would_take(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The emulator refuses what the engine that is built later would refuse."""
    model = save(
        parse("(float[n,4] x) => (float[n,4] y) { [a] p = Abs(x) [b] y = Abs(p) }"), tmp_path
    )
    np.savez(tmp_path / "inputs.npz", x=np.ones((2, 4), np.float32))
    words = [str(model), "--inputs", str(tmp_path / "inputs.npz"), "--backend", "emulated"]
    code = main([*words, "--out", str(tmp_path / "run"), *flags])
    assert (ExitCode.USAGE if said else ExitCode.OK) == code
    assert said in capsys.readouterr().err
