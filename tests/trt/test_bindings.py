"""The backend's own code on the real Python bindings of TensorRT 8.6 to 11.4.

The bindings come from the package index; the libraries below them, which are large and need a GPU,
are stubs. So classes, enumerations and flags are the real ones, and nothing can be built: what is
shown is that no attribute is touched that a version does not have.
"""

import ast
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

import precision_bisect.backends.tensorrt as package
from effort import nightly
from precision_bisect.machine.gpu import driver_version

WHEELS = {
    "8.6.1": "tensorrt-bindings==8.6.1",
    "10.3.0": "tensorrt_cu12_bindings==10.3.0",
    "10.16.1.11": "tensorrt_cu12_bindings==10.16.1.11",
    "11.4.0.106": "tensorrt_cu13_bindings==11.4.0.106",
}
LIBRARIES = ("libnvinfer", "libnvinfer_plugin", "libnvonnxparser", "libnvparsers")
SYMBOLS = (
    *("createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL"),
    *("createInferRuntime_INTERNAL", "getBuilderPluginRegistry", "getPluginRegistry"),
    *("createNvOnnxParser_INTERNAL", "createNvOnnxParserRefitter_INTERNAL"),
    *("getNvOnnxParserVersion", "initLibNvInferPlugins"),
    # TensorRT 8 only: UFF and Caffe parsers, in C++.
    *("_ZN11nvuffparser15createUffParserEv", "_ZN14nvcaffeparser117createCaffeParserEv"),
    "_ZN11nvuffparser8FieldMapC1EPKcPKvNS_9FieldTypeEi",
    "_ZN14nvcaffeparser123shutdownProtobufLibraryEv",
)

MODULE = {"trt": "", "module": "", "flavour.module": "", "self._flavour.module": ""}
OWNERS: dict[str, dict[str, str]] = {
    "flavour.py": MODULE,
    "log.py": MODULE,
    "tensorrt_plugin.py": MODULE,
    "watch.py": MODULE,
    "build.py": MODULE
    | {"network": "INetworkDefinition", "tensor": "ITensor", "config": "IBuilderConfig"},
    "weak.py": MODULE | {"network": "INetworkDefinition", "layer": "ILayer", "tensor": "ITensor"},
    "tensorrt_backend.py": MODULE | {"parser": "OnnxParser", "error": "ParserError"},
    "tensorrt_engine.py": MODULE
    | {"runner.engine": "ICudaEngine", "runner.context": "IExecutionContext"},
    "debug_tensors.py": MODULE | {"runner.context": "IExecutionContext"},
    "layer_times.py": MODULE
    | {
        "runner.context": "IExecutionContext",
        "engine": "ICudaEngine",
        "context": "IExecutionContext",
        "inspector": "EngineInspector",
    },
}
"""For each file that touches TensorRT: what its variables stand for, "" for the module itself."""

PROFILE_VALUES = "IOptimizationProfile.set_shape_input"
"""What Polygraphy calls for inputs that give a shape by their values."""

PROBE = """
import json, sys
from types import SimpleNamespace
from precision_bisect.backends.tensorrt.build import Marks, Recipe, config_loader, pin_tactics
from precision_bisect.backends.tensorrt.flavour import load_flavour
from precision_bisect.backends.tensorrt.layer_times import _PROFILE_VALUES
from precision_bisect.backends.tensorrt.log import collected
from precision_bisect.backends.tensorrt.watch import BuildWatch
from precision_bisect.backends.tensorrt.weak import LEFT_ALONE, to_mark
from precision_bisect.settings.engine_settings import EngineSettings

flavour = load_flavour("tensorrt")
trt = flavour.module
with collected(flavour) as messages:
    from polygraphy.backend.trt import get_trt_logger

    get_trt_logger().log(trt.ILogger.ERROR, "an error")
    get_trt_logger().log(trt.ILogger.VERBOSE, "not kept")
    monitor = BuildWatch(None).monitor(trt)
    settings = EngineSettings(workspace_mib=64, optimization_level=2)
    marks = Marks(kept=(), high={}, low="fp16") if flavour.weak else None
    config = config_loader(flavour, Recipe(settings=settings, ranges={}, marks=marks), monitor)
    quantized = []
    for low in ("fp16", None) if flavour.weak else ():
        for kinds in ((), ("int8",), ("fp8",)):
            marks = Marks(kept=(), high={}, low=low, quantized=kinds)
            made = config_loader(flavour, Recipe(settings=settings, ranges={}, marks=marks))
            quantized.append([made.fp16, made.int8, made.fp8, made.precision_constraints])
flags, caches = [], []
pin_tactics(trt, SimpleNamespace(
    set_flag=lambda flag: flags.append(flag.name),
    create_timing_cache=lambda data: data,
    set_timing_cache=lambda cache, ignore_mismatch: caches.append([len(cache), ignore_mismatch]),
))


def missing(path):
    owner = trt
    for name in path.split("."):
        if not hasattr(owner, name):
            return True
        owner = getattr(owner, name)
    return False


print(json.dumps({
    "version": flavour.version,
    "typing": [flavour.weak, flavour.strong],
    "targets": flavour.targets,
    "messages": [[message.severity, message.text] for message in messages],
    "monitors": monitor is not None and monitor.step_complete("phase", 0),
    "marked": to_mark(SimpleNamespace(num_layers=0), {"any": ("fp32", (), ())}),
    "layer_types": [name for name in trt.LayerType.__members__ if name not in LEFT_ALONE],
    "pinned": [flags, caches],
    "config": [config.fp16, config.bf16, config.tf32, config.precision_constraints],
    "quantized": quantized,
    "profile values": any(hasattr(trt.ICudaEngine, each) for each in _PROFILE_VALUES),
    "missing": {
        file: list(filter(missing, paths)) for file, paths in json.load(sys.stdin).items()
    },
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bindings:
    """One version of the bindings, ready to be imported as `tensorrt` in another process."""

    version: str
    path: Path
    libraries: Path

    def probe(self, surface: dict[str, list[str]]) -> dict[str, Any]:
        """Run the probe on this version and return what it found."""
        found: dict[str, Any] = json.loads(self.run(["-c", PROBE], json.dumps(surface)))
        return found

    def run(self, arguments: Sequence[str], stdin: str = "") -> str:
        """Return what Python prints with these arguments, where this version is installed."""
        ran = subprocess.run(
            [sys.executable, *arguments],
            input=stdin,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(self.path), os.environ.get("PYTHONPATH", "")]),
                "LD_LIBRARY_PATH": str(self.libraries),
                "POLYGRAPHY_USE_TENSORRT_RTX": "0",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert (0, "") == (ran.returncode, ran.stderr)
        return ran.stdout


COMPUTING = {
    *("CONVOLUTION", "FULLY_CONNECTED", "DECONVOLUTION", "MATRIX_MULTIPLY", "EINSUM", "RNN_V2"),
    *("ACTIVATION", "POOLING", "LRN", "SCALE", "SOFTMAX", "ELEMENTWISE", "UNARY", "REDUCE"),
    *("RAGGED_SOFTMAX", "PARAMETRIC_RELU", "NORMALIZATION", "CUMULATIVE", "ROTARY_EMBEDDING"),
    *("CONCATENATION", "PADDING", "SHUFFLE", "GATHER", "SLICE", "SELECT", "SCATTER", "FILL"),
    *("TOPK", "RESIZE", "GRID_SAMPLE", "NMS", "ONE_HOT", "NON_ZERO", "REVERSE_SEQUENCE"),
    *("SQUEEZE", "UNSQUEEZE", "CONSTANT", "IDENTITY"),
}
"""The types of layers that are marked where they handle floats. A new type is looked at first."""


def unavailable(reason: str) -> NoReturn:
    """Skip the test; in CI, where everything must be there, fail it."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile libraries that have TensorRT's names and entry points, and do nothing."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("the bindings are those for Linux on x86-64")
    compiler = shutil.which("gcc")
    if compiler is None:
        unavailable("gcc is not installed")
    root = tmp_path_factory.mktemp("stubs")
    source = root / "stub.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in SYMBOLS))
    for major in {version.partition(".")[0] for version in WHEELS}:
        (root / major).mkdir()
        for library in LIBRARIES:
            name = f"{library}.so.{major}"
            command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o"]
            subprocess.run([*command, str(root / major / name), str(source)], check=True)
    return root


@pytest.fixture(
    scope="session",
    params=[
        *("8.6.1", "11.4.0.106"),
        *nightly("10.3.0", "10.16.1.11"),
    ],
)
def bindings(
    request: pytest.FixtureRequest, stubs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Bindings:
    """Fetch one version of the bindings, once for all test runs, and unpack it."""
    version: str = request.param
    if version.startswith("8.") and sys.version_info >= (3, 12):
        pytest.skip("TensorRT 8.6 has bindings up to Python 3.11 only")
    wheel = wheel_of(version, request.config.cache.mkdir("tensorrt-bindings"))
    root = tmp_path_factory.mktemp("bindings")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(root)
    (root / "tensorrt").mkdir()
    (root / "tensorrt" / "__init__.py").write_text(
        "from tensorrt_bindings import *\nfrom tensorrt_bindings import __version__\n"
    )
    major = version.partition(".")[0]
    return Bindings(version=version, path=root, libraries=stubs / major)


def wheel_of(version: str, cache: Path) -> Path:
    """Return the wheel of the bindings, about 1 MB, downloaded where it is not there yet."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    pattern = f"*-{version}-{tag}-*.whl"
    if not list(cache.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        ran = subprocess.run(
            [*command, "--quiet", "--dest", str(cache), WHEELS[version]],
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode != 0:
            last = (ran.stderr.strip().splitlines() or ["pip failed"])[-1]
            unavailable(f"{WHEELS[version]} cannot be downloaded: {last}")
    return next(cache.glob(pattern))


def touched(file: Path) -> Iterator[str]:
    """Yield the attributes of TensorRT that the file takes for granted, as dotted paths."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    asked = {
        str(ast.literal_eval(call.args[1]))
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "hasattr"
        and isinstance(call.args[1], ast.Constant)
    }
    for node in ast.walk(tree):
        text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        for variable, owner in OWNERS[file.name].items():
            if not text.startswith(f"{variable}."):
                continue
            names = text.removeprefix(f"{variable}.").split(".")
            # Of an object only its own attributes are known, of the module those of its classes.
            path = [owner, names[0]] if owner else names[:2]
            if names[0] not in asked and "(" not in text:
                yield ".".join(path)


def surface(*files: str) -> dict[str, list[str]]:
    """Return what each of the files touches."""
    root = Path(package.__file__).parent
    return {file: sorted(set(touched(root / file))) for file in files}


def test_the_surface_is_what_the_code_touches() -> None:
    """Attributes that a build stands on are found in the code, guarded ones are not."""
    found = surface(*OWNERS)
    assert {"ParserError.node_name", "OnnxParser.get_error"} <= set(found["tensorrt_backend.py"])
    expected = {"EngineInspector.execution_context", "IProfiler.__init__"}
    assert expected <= set(found["layer_times.py"])
    assert "ProfilingVerbosity.DETAILED" in found["build.py"]
    assert "ComputeCapability.__members__" not in found["flavour.py"]


def test_every_file_that_touches_tensorrt_is_looked_at() -> None:
    """A file of the package that uses the library's module is in the list."""
    root = Path(package.__file__).parent
    using = {
        file.name
        for file in root.glob("*.py")
        if "module." in file.read_text(encoding="utf-8") or "trt." in file.read_text("utf-8")
    }
    assert using <= set(OWNERS)


def test_the_backend_runs_on_these_bindings(bindings: Bindings) -> None:
    """Capabilities, logger, monitor and configuration are right for each version.

    A weak build of Q/DQ needs INT8 or FP8 beside FP16, and where nothing else is low, too. What
    typed weakly is found missing where, and only where, it was removed: the probe can fail.
    """
    weak = not bindings.version.startswith("11.")
    strong = not bindings.version.startswith("8.")
    pins = bindings.version not in ("8.6.1", "10.3.0")
    of_ten = () if strong else ("tensorrt_backend.py", "debug_tensors.py")
    touched_by = surface(*(file for file in OWNERS if file not in of_ten))
    found = bindings.probe({**touched_by, "Polygraphy's Profile": [PROFILE_VALUES]})
    removed = {"weak.py": ["ILayer.precision", "ILayer.set_output_type"]}
    missing = {file: paths for file, paths in found.pop("missing").items() if paths}
    assert ({} if weak else removed) == missing
    assert set() == {*found.pop("layer_types")} - COMPUTING
    low_and_quantized = [
        [low, eight == 1, eight == 2, "obey"] for low in (True, False) for eight in range(3)
    ]
    assert {
        "version": bindings.version,
        "typing": [weak, strong],
        "targets": [],
        "messages": [["ERROR", "an error"]],
        "monitors": strong,
        "marked": {"any": []},
        "pinned": [["EDITABLE_TIMING_CACHE"], [[0, False]]] if pins else [[], []],
        "config": [weak, False, False, "obey" if weak else None],
        "quantized": low_and_quantized if weak else [],
        "profile values": True,
    } == found


CALIBRATED = """
from types import SimpleNamespace
from precision_bisect.backends.tensorrt.build import with_script
from precision_bisect.backends.tensorrt.flavour import load_flavour
from precision_bisect.backends.tensorrt.log import collected

flavour = load_flavour("tensorrt")
with collected(flavour):
    flags = []
    config = SimpleNamespace(set_flag=lambda flag: flags.append(flag.name))
    made = with_script(lambda builder, network: config, "calibrated.py:postprocess_config")
    made("builder", "network")
    kinds = flavour.module.IInt8EntropyCalibrator2
    assert isinstance(config.int8_calibrator, kinds), type(config.int8_calibrator)
    assert hasattr(flavour.module.IBuilderConfig, "int8_calibrator")
    print(flags, bytes(config.int8_calibrator.read_calibration_cache()))
"""


def test_a_script_hands_over_a_calibration_cache(
    bindings: Bindings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script of the documentation works wherever there are calibrators."""
    if bindings.version.startswith("11."):
        pytest.skip("TensorRT 11 has no calibrators")
    page = (Path(__file__).parents[2] / "docs" / "precisions.md").read_text()
    script = page.partition("```python\n# calibrated.py\n")[2].partition("```")[0]
    (tmp_path / "calibrated.py").write_text(script)
    (tmp_path / "calibration.cache").write_bytes(b"x: 3c010a14")
    monkeypatch.chdir(tmp_path)
    assert "['INT8'] b'x: 3c010a14'" == bindings.run(["-c", CALIBRATED]).strip()


START = """
from precision_bisect.backends.tensorrt.build import Recipe, build
from precision_bisect.backends.tensorrt.flavour import load_flavour
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.errors import RefusedError

try:
    build(load_flavour("tensorrt"), "model.onnx", Recipe(settings=EngineSettings(), ranges={}))
except RefusedError as error:
    print(error.one_line())
"""


def test_a_library_that_cannot_start_cuda_is_one_line(bindings: Bindings) -> None:
    """The bindings say nullptr; the line has the versions of library, package, driver and CUDA."""
    if driver_version():
        pytest.skip("this machine has a driver")
    module = "precision_bisect.backends.tensorrt.tensorrt_plugin"
    package = WHEELS[bindings.version].replace("-", "_").replace("==", " ")
    for arguments in (["-m", module, "tensorrt"], ["-c", START]):
        said = bindings.run(arguments).strip().removeprefix("precision-bisect hears: ")
        assert said.startswith(f"tensorrt {bindings.version} ({package}) cannot start CUDA: ")
        assert "there is no driver; install a driver for the CUDA that it is made for" in said
