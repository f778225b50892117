"""The main job, end to end, as a user starts it: real models, real processes."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from effort import nightly
from patience import LIMIT_S, PATIENCE_S, wait_for
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.commandline.main import main
from precision_bisect.exports.trtexec_names import parse_layer_precisions
from precision_bisect.runs.results.result import KEYS
from precision_bisect.runs.runfolder import REPORT
from precision_bisect_reports.summary import MOST_LINES
from tiny import write_with_samples

REPO = Path(__file__).parents[2]
EXAMPLE = REPO / "examples" / "nafnet"
COMMAND = [sys.executable, "-m", "precision_bisect"]
MODEL = str(EXAMPLE / "nafnet.onnx")
ONE_SAMPLE = [*COMMAND, MODEL, "--inputs", str(EXAMPLE / "inputs" / "000.npz")]
"""Enough where the answer itself is not what a test is about."""
HANGS_AT_LAST = """
import itertools, time

calls = itertools.count()

def error(outputs, reference):
    if next(calls) >= 40:
        time.sleep(600)
    return max(float(abs(o[k] - r[k]).max()) for o, r in zip(outputs, reference) for k in o)
"""
HANGS = "import time\n\ndef load_data():\n    time.sleep(600)\n"


@pytest.fixture(scope="module", params=["000.npz", *nightly(".")])
def example(request: pytest.FixtureRequest) -> Iterator[tuple[Path, str]]:
    """Run the example on some samples; yield its run folder and its final screen.

    The folder's path is short: commands with a long one fold.
    """
    with tempfile.TemporaryDirectory() as short:
        folder = Path(short) / "run"
        command = [*COMMAND, MODEL, "--inputs", str(EXAMPLE / "inputs" / request.param)]
        command += ["--target", "tensorrt", "--tol", "1e-2", "--out", str(folder)]
        # In the fused form nothing is kept.
        command += ["--no-fuse-norms"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        assert 0 == ran.returncode, ran.stderr
        yield folder, ran.stdout


def test_example_keeps_few_layers_with_few_trials(example: tuple[Path, str]) -> None:
    """At most 20 of 300 layers are kept, after at most 60 trials and 250 evaluations."""
    folder = example[0]
    result = json.loads((folder / "result.json").read_text())
    assert list(KEYS) == list(result)
    assert "found" == result["status"]
    assert 300 == result["candidates"]
    assert 0 < len(result["kept"]) <= 20
    assert result["error"] <= result["tolerance"] == 1e-2
    assert result["trials"] <= 60
    assert result["evaluations"] <= 250


def test_example_is_certified(example: tuple[Path, str]) -> None:
    """Every kept layer was dropped once, and each drop failed."""
    result = json.loads((example[0] / "result.json").read_text())
    certificate = result["certificate"]
    assert ("full", True, None) == tuple(certificate[k] for k in ("mode", "minimal", "forecasts"))
    assert (result["kept"], []) == (certificate["checked"], certificate["unchecked"])
    assert {("dropped", True)} == {(e["how"], e["needed"]) for e in certificate["evidence"]}


def test_example_is_explained(example: tuple[Path, str]) -> None:
    """Each kept layer is in the normalizations and diagnosed as an overflow."""
    result = json.loads((example[0] / "result.json").read_text())
    assert result["kept"] == [entry["layer"] for entry in result["diagnosis"]]
    assert {"overflow"} == {entry["cause"] for entry in result["diagnosis"]}
    assert all("/norm" in name for name in result["kept"])


def in_files(folder: Path) -> list[str]:
    """Return the layers that the exported plan keeps: with one sample a safer one is deployed."""
    result = json.loads((folder / "result.json").read_text())
    plan: dict[str, list[str]] = {"deploy": result["deploy"], "fewest": result}[
        result["export_point"]
    ]
    return plan["kept"]


def test_example_exports_what_it_deploys(example: tuple[Path, str]) -> None:
    """layerPrecisions.txt, parsed as trtexec does, names exactly the layers of that plan."""
    folder = example[0]
    result = json.loads((folder / "result.json").read_text())
    written = (folder / "layerPrecisions.txt").read_text()
    assert result["layer_precisions"] == written
    assert dict.fromkeys(in_files(folder), "fp32") == parse_layer_precisions(written)


def test_final_screen_groups_by_module(example: tuple[Path, str]) -> None:
    """The screen says what the layers are, and the next step."""
    screen = example[1]
    assert f"/{REPORT}" in screen and len(screen.splitlines()) <= MOST_LINES
    assert "\x1b" not in screen


def test_the_found_plan_is_honoured_by_a_real_engine(
    rtx: Flavour, example: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """`verify` builds the files with TensorRT-RTX, without a GPU: every kept layer is FP32."""
    folder = example[0]
    assert 0 == main(["verify", MODEL, "--plan", str(folder), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert ("tensorrt-rtx", None, True) == (found["backend"], found["failure"], found["honoured"])
    assert set(in_files(folder)) == {entry["layer"] for entry in found["layers"]}


def test_exports_can_be_made_again(example: tuple[Path, str], tmp_path: Path) -> None:
    """`export` writes the same files as the run did."""
    folder = example[0]
    assert 0 == main(["export", MODEL, "--plan", str(folder), "--out", str(tmp_path)])
    names = ["autocast-exclude.txt", "golden_inputs.json", "golden_outputs.json"]
    names += ["layerPrecisions.txt", "model.mixed.onnx", "polygraphy_constraints.py"]
    names += ["run_onnxruntime.py", "torch_autocast.py", "trtexec.sh"]
    assert names == sorted(file.name for file in tmp_path.iterdir())
    for name in set(names) - {"trtexec.sh"}:  # it names the folder that it lies in
        assert (folder / name).read_bytes() == (tmp_path / name).read_bytes(), name


@pytest.mark.parametrize("number", [signal.SIGINT, *nightly(signal.SIGTERM)])
def test_interrupt_writes_the_best_so_far(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM during the search end it with result.json and exit code 130."""
    (tmp_path / "check.py").write_text(HANGS_AT_LAST)
    how = ["--strategy", "ddmin", "--tol", "1e-3", "--check", f"{tmp_path / 'check.py'}:error"]
    child = subprocess.Popen(
        [*ONE_SAMPLE, *how, "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    for line in child.stderr:
        if "best" in line:
            break
    child.send_signal(number)
    child.communicate(timeout=PATIENCE_S)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert 130 == child.returncode
    assert "interrupted" == result["status"]
    assert result["kept"]


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize(
    "library",
    ["onnxruntime_pybind11_state", *nightly("_multiarray_umath")],
)
def test_interrupt_while_starting_ends_at_once(tmp_path: Path, library: str) -> None:
    """Before the search Ctrl-C is one line and writes nothing, whatever library is loading."""
    (tmp_path / "hangs.py").write_text(HANGS)
    asked = ["--inputs", str(tmp_path / "hangs.py"), "--out", str(tmp_path / "run")]
    child = subprocess.Popen([*COMMAND, MODEL, *asked], stderr=subprocess.PIPE, text=True)
    loaded = Path(f"/proc/{child.pid}/maps")
    wait_for(child, lambda: library in loaded.read_text())
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=PATIENCE_S)
    assert 130 == child.returncode
    assert not (tmp_path / "run").exists()
    assert ["precision-bisect: interrupted before the search began; nothing was written"] == (
        said.splitlines()
    )


@pytest.mark.parametrize("no_color", [False, *nightly(True)])
def test_a_terminal_shows_live_progress(tmp_path: Path, *, no_color: bool) -> None:
    """One line is redrawn with what was spent and the best so far, in color unless NO_COLOR is."""
    model = write_with_samples(tmp_path)
    master, slave = pty.openpty()
    # Before version 14 rich took an empty NO_COLOR for one that is set.
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    environment |= {"TERM": "xterm-256color"} | ({"NO_COLOR": "1"} if no_color else {})
    child = subprocess.Popen(
        [*COMMAND, str(model), "--out", str(tmp_path / "run"), "--max-trials", "5"],
        stdout=slave,
        stderr=slave,
        env=environment,
    )
    os.close(slave)
    shown = b""
    with suppress(OSError):  # Linux tells in this way that the other end is closed.
        while chunk := os.read(master, 65536):
            shown += chunk
    os.close(master)
    assert 3 == child.wait(timeout=PATIENCE_S)
    assert b"\x1b[2K" in shown
    assert b"evaluations, best " in shown
    assert b"Budget spent" in re.sub(rb"\x1b\[[0-9;]*m", b"", shown)
    codes = [code for code in (b"33", b"1;33", b"32", b"31") if b"\x1b[%bm" % code in shown]
    assert no_color == (not codes)
