"""The wheel and what it writes, before the other tools that people use it with.

They run every night, for they take packages from PyPI into environments of their own.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import sync_playwright

from models import normal, parse, save, with_weights
from patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.nightly

REPO = Path(__file__).parents[2]
UV = shutil.which("uv") or ""
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
VERSION = r"precision-bisect \d+\.\d+\.\d+\n"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
NETWORK = """
(float[2, 16] x) => (float[2, 16] y) <float eps = {0.00001}> {
    [fc] h = MatMul(x, w)
    [square] square = Mul(h, h)
    [mean] mean = ReduceMean<axes = [-1]>(square)
    [add] shifted = Add(mean, eps)
    [root] root = Sqrt(shifted)
    [div] normed = Div(h, root)
    [fc2] y = MatMul(normed, v)
}
"""
"""A product, and an RMS norm in pieces whose square overflows."""
KINDS = {
    "fp16": ("--tol", "0.01"),
    "bf16": ("--low", "bf16", "--tol", "0.1"),
    "int8": ("--low", "int8", "--tol", "0.5"),
    "fp8": ("--low", "fp8", "--tol", "0.5"),
    "io": ("--io-types", "fp16", "--tol", "0.01"),
    "fused": ("--fuse-norms", "--tol", "0.01"),
    "ladder": ("--ladder", "int8,fp16,fp32", "--tol", "0.01"),
}
NO_KERNEL = ("bf16", "fp8")
"""What ONNX Runtime's CPU has no kernels for."""

LOAD = """
import sys
from pathlib import Path

import onnx
import onnxruntime
from polygraphy.backend.onnx import OnnxFromPath
from polygraphy.backend.onnxrt import SessionFromOnnx
from polygraphy.json import load_json

run, kernels = Path(sys.argv[1]), sys.argv[2] == "kernels"
for path in map(str, sorted(run.glob("*.onnx"))):
    onnx.checker.check_model(path, full_check=True)
    OnnxFromPath(path)()
    if kernels:
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        SessionFromOnnx(path, providers=["cpu"])()
for path in map(str, sorted(run.glob("golden_*.json"))):
    assert len(load_json(path)) > 0, path
print("loaded", *sorted(path.name for path in run.iterdir()))
"""
PLACES = """\
from typing import Any


def there() -> Any:
    return None


model, samples, x1, x2 = there(), there(), there(), there()
"""
"""What pages take as there: the reader's model and samples."""
USED = """\
import precision_bisect


def names(result: precision_bisect.Result) -> list[str]:
    return [*result.kept, result.status, str(result.error), str(result.certificate.minimal)]


names(precision_bisect.find("model.onnx", tol=1e-2, max_time="10m"))
names(precision_bisect.load("model.onnx.precision-bisect"))
"""


def run(*words: str | Path, **settings: object) -> str:
    """Run a program, and return what it printed. Fails with all of it where the program does."""
    ran = subprocess.run(
        list(map(str, words)),
        capture_output=True,
        text=True,
        **settings,  # type: ignore[call-overload]
    )
    assert 0 == ran.returncode, ran.stdout[-2000:] + ran.stderr[-2000:]
    return str(ran.stdout)


@pytest.mark.skipif(not UV, reason="uv is not installed")
@pytest.mark.parametrize("python", PYTHONS)
def test_it_starts_from_the_wheel_alone(python: str, wheel: Path, tmp_path: Path) -> None:
    """`uvx --from WHEEL` needs nothing else, on each Python that is at hand."""
    # Of pyenv's shims only those start whose version was chosen.
    places = [os.environ["PATH"], *map(str, Path.home().glob(".pyenv/versions/*/bin"))]
    interpreter = shutil.which(f"python{python}", path=os.pathsep.join(reversed(places)))
    if interpreter is None:
        pytest.skip(f"there is no Python {python} here")
    words = ("--isolated", "--python", interpreter, "--from", wheel)
    said = run(UV, "tool", "run", *words, "precision-bisect", "--version", cwd=tmp_path)
    assert re.fullmatch(VERSION, said)


@pytest.mark.skipif(not UV, reason="uv is not installed")
def test_pipx_starts_it(wheel: Path, tmp_path: Path) -> None:
    """`pipx run --spec WHEEL` takes what the wheel needs, and no more."""
    words = ("tool", "run", "--quiet", "pipx", "run", "--spec", wheel, "precision-bisect")
    homes = {name: str(tmp_path / name) for name in ("PIPX_HOME", "PIPX_BIN_DIR")}
    said = run(UV, *words, "--version", cwd=tmp_path, env={**os.environ, **homes})
    assert re.fullmatch(VERSION, said)


@pytest.mark.skipif(not UV, reason="uv is not installed")
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_type_checkers_take_the_snippets(checker: str, wheel: Path, tmp_path: Path) -> None:
    """What pages show of the Python API has the types that py.typed promises."""
    pages = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]
    snippets = [
        snippet
        for page in pages
        for snippet in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
        # TensorRT is nowhere on a machine without one, the others lie in the run folder.
        if not re.search("import tensorrt|torch_autocast|onnx_reference", snippet)
    ]
    assert snippets
    for count, snippet in enumerate([*snippets, USED]):
        (tmp_path / f"snippet_{count}.py").write_text(PLACES + snippet, encoding="utf-8")
    # Installed as users have it: of sources beside them checkers would not ask for py.typed.
    python = environment(tmp_path / "env", [f"{wheel}[cpu]", "mypy", "pyright", "tokenizers"])
    words: Mapping[str, Sequence[str | Path]] = {
        "mypy": ("--ignore-missing-imports", "--disable-error-code=import-untyped"),
        "pyright": ("--pythonpath", python),
    }
    run(python.with_name(checker), *words[checker], *sorted(tmp_path.glob("*.py")), cwd=tmp_path)


def environment(folder: Path, packages: Sequence[str | Path], *resolution: str) -> Path:
    """Make an environment with these packages, and return its Python."""
    run(UV, "venv", "--quiet", "--python", sys.executable, folder)
    python = folder / "bin" / "python"
    run(UV, "pip", "install", "--quiet", "--python", python, *resolution, *packages)
    return python


@pytest.fixture(scope="module")
def environments(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make an environment of the oldest versions that pyproject.toml allows, one of the newest."""
    if not UV:
        pytest.skip("uv is not installed")
    folder = tmp_path_factory.mktemp("environments")
    pythons = {}
    for age, resolution in (("oldest", "lowest-direct"), ("newest", "highest")):
        listed = folder / f"{age}.txt"
        words = ("pip", "compile", "--quiet", "--extra", "cpu", "--resolution", resolution)
        run(UV, *words, REPO / "pyproject.toml", "--output-file", listed)
        pythons[age] = environment(folder / age, [wheel], "--requirements", str(listed))
    return pythons


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small network with its samples beside it."""
    folder = tmp_path_factory.mktemp("network")
    weights = {"w": 60 * normal(16, 16, seed=1), "v": normal(16, 16, seed=2)}
    path = save(with_weights(parse(NETWORK, ir=10), weights), folder)
    (folder / "inputs").mkdir()
    for seed in range(8):
        np.savez(folder / "inputs" / f"{seed}.npz", x=normal(2, 16, seed=seed))
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("writer", ["oldest", "newest"])
def test_other_loaders_take_every_file(
    kind: str, writer: str, environments: dict[str, Path], network: Path, tmp_path: Path
) -> None:
    """ONNX, its checker, ONNX Runtime and Polygraphy, of the oldest and the newest versions."""
    ours = environments[writer].with_name("precision-bisect")
    flags = (*("--inputs", str(network.parent / "inputs")), *("--out", str(tmp_path / "run")))
    run(ours, network, *flags, *KINDS[kind])
    kernels = "none" if kind in NO_KERNEL else "kernels"
    for reader in environments.values():
        assert "model.mixed.onnx" in run(reader, "-c", LOAD, tmp_path / "run", kernels)
    if kernels == "kernels":
        golden = ("--load-inputs", "golden_inputs.json", "--load-outputs", "golden_outputs.json")
        limits = ("--validate", "--atol", "0.2", "--rtol", "0.2")
        for reader in environments.values():
            words = ("run", "model.mixed.onnx", "--onnxrt", *golden, *limits)
            assert "PASSED" in run(reader.with_name("polygraphy"), *words, cwd=tmp_path / "run")


def answers(port: int) -> bool:
    """Tell whether a server listens."""
    with contextlib.suppress(OSError), socket.create_connection(("localhost", port)):
        return True
    return False


@contextlib.contextmanager
def served(model: Path) -> Iterator[str]:
    """Serve a model by Netron, and yield the address of its page."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    # Without BROWSER it would open one.
    server = subprocess.Popen(
        [UV, "tool", "run", "netron", "--port", str(port), str(model)],
        env={**os.environ, "BROWSER": "true"},
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: answers(port))
        yield f"http://localhost:{port}/"
    finally:
        server.kill()
        server.wait()


@pytest.mark.skipif(not (UV and CHROMIUM), reason="uv or Chromium is not installed")
def test_netron_shows_why_a_layer_is_kept(
    environments: dict[str, Path], network: Path, tmp_path: Path
) -> None:
    """It opens the marked model, and a click on a kept layer tells the cause."""
    folder = tmp_path / "run"
    flags = ("--inputs", network.parent / "inputs", "--out", folder, "--export-point", "fewest")
    run(environments["newest"].with_name("precision-bisect"), network, "--tol", "0.01", *flags)
    assert "square" in json.loads((folder / "result.json").read_text())["kept"]
    with served(folder / "model.mixed.onnx") as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(1e3 * PATIENCE_S)
        page.goto(address)
        page.get_by_text("Accept").click()
        page.wait_for_selector("g.node")
        page.locator("[id='node-name-square'] path").first.click(force=True)
        page.get_by_text("Metadata").wait_for()
        said = page.locator("#sidebar").inner_text()
        browser.close()
    assert "overflow" in said.partition("METADATA")[2]
