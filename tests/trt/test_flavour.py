"""Which TensorRT libraries there are, and which of them Polygraphy uses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from precision_bisect.backends.tensorrt.flavour import (
    Flavour,
    absent,
    load_flavour,
    suited,
)
from precision_bisect.backends.tensorrt.tensorrt_plugin import why_not_started
from precision_bisect.errors import PluginError


def output_of(code: str) -> str:
    """Return what the code prints in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "POLYGRAPHY_USE_TENSORRT_RTX": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout


def test_rtx_types_strongly_and_builds_for_absent_gpus(rtx: Flavour) -> None:
    """TensorRT-RTX cannot mark layers, and names the GPUs that it can build for."""
    assert ("tensorrt-rtx", False, True) == (rtx.name, rtx.weak, rtx.strong)
    assert {"8.0", "8.6", "8.9", "12.0"} <= set(rtx.targets)
    assert "9.0" not in rtx.targets


def test_without_a_gpu_it_says_that_it_cannot_run(rtx: Flavour) -> None:
    """Where no GPU is seen, the library cannot run, and one sentence says what to do."""
    if rtx.device is not None:
        pytest.skip("this machine has a GPU")
    assert not rtx.can_run
    assert rtx.why_not.startswith("no GPU that CUDA can use was found; install")


def test_a_missing_library_is_one_line_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A library that is not installed is an error that names the package to install."""
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    monkeypatch.setattr(sys, "path", [])  # nor a package of pip
    with pytest.raises(PluginError) as caught:
        load_flavour("tensorrt-rtx")
    assert "tensorrt-rtx is not installed; pip install tensorrt_rtx" == caught.value.one_line()


@pytest.mark.parametrize(
    ("cuda", "tensorrt", "rtx"),
    [
        ("12.8", "tensorrt-cu12", "tensorrt_rtx_cu12"),
        ("13.0", "tensorrt-cu13", "tensorrt_rtx"),
        (None, "tensorrt-cu13", "tensorrt_rtx"),
    ],
)
def test_what_to_install_fits_the_driver(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, tensorrt: str, rtx: str
) -> None:
    """A library for a newer CUDA than the driver serves would not start."""
    monkeypatch.setattr("precision_bisect.backends.tensorrt.flavour.cuda_version", lambda: cuda)
    assert suited("tensorrt").startswith(f"'{tensorrt}==10.*'")
    assert rtx == suited("tensorrt-rtx")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ImportError('libnvinfer.so.99: cannot open shared')", r"libnvinfer\.so\.99"),
        ("raise RuntimeError('CUDA initialization\\nfailure')", "RuntimeError: CUDA .* failure"),
        ("import tensorrt_rtx.gone", "No module named 'tensorrt_rtx.gone'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_any_exception_of_an_import_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, said: str
) -> None:
    """A library that is there and does not load is told apart from one that is not there."""
    (tmp_path / "tensorrt_rtx.py").write_text(text)
    monkeypatch.delitem(sys.modules, "tensorrt_rtx", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match=f"tensorrt-rtx does not load: {said}"):
        load_flavour("tensorrt-rtx")


@pytest.mark.parametrize(
    ("package", "advised"),
    [
        ("tensorrt_cu12_bindings", "tensorrt_cu12==10.3.0"),
        ("tensorrt_bindings", "tensorrt==10.3.0"),
        ("tensorrt_cu13", "tensorrt_cu13==10.3.0"),
    ],
)
def test_no_other_major_is_advised_over_one_that_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str, advised: str
) -> None:
    """Where a part is installed, what is missing is advised in its version and for its CUDA."""
    info = tmp_path / f"{package}-10.3.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 10.3.0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setitem(sys.modules, "tensorrt", None)  # so that it is taken out again
    monkeypatch.delitem(sys.modules, "tensorrt")
    with pytest.raises(PluginError) as caught:
        load_flavour("tensorrt")
    assert "tensorrt is not whole" == caught.value.message
    assert (
        f"{package} 10.3.0 is there: pip install --force-reinstall {advised}" == caught.value.hint
    )
    assert not absent("tensorrt")


def test_a_library_that_starts(rtx: Flavour) -> None:
    """A builder is made in another process, which takes no GPU where the library needs none."""
    assert "" == why_not_started(rtx.name)


def test_a_library_that_takes_its_process_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A library that ends the process it is loaded in is one line as well."""
    (tmp_path / "tensorrt.py").write_text("import os\nos.abort()\n")
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    why_not_started.cache_clear()
    said = why_not_started("tensorrt")
    why_not_started.cache_clear()
    assert "tensorrt made no builder: its process ended by SIGABRT (Aborted)" in said


def test_what_else_python_prints_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rtx: Flavour
) -> None:
    """A sitecustomize.py that prints, as it starts and as it ends, takes no library away."""
    code = "import atexit\nprint('hello')\natexit.register(print, 'bye')\n"
    (tmp_path / "sitecustomize.py").write_text(code)
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    why_not_started.cache_clear()
    assert "" == why_not_started(rtx.name)


def test_a_file_in_the_folder_of_the_user_is_no_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rtx: Flavour
) -> None:
    """A tensorrt_rtx.py where the command is started is not what was asked about."""
    (tmp_path / "tensorrt_rtx.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    why_not_started.cache_clear()
    assert "" == why_not_started(rtx.name)


def test_a_folder_of_the_same_name_is_no_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A folder called tensorrt beside the user's files does not pass for the library."""
    (tmp_path / "tensorrt").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setitem(sys.modules, "tensorrt", None)  # so that it is taken out again
    monkeypatch.delitem(sys.modules, "tensorrt")
    with pytest.raises(PluginError, match="tensorrt is not installed"):
        load_flavour("tensorrt")


@pytest.mark.usefixtures("rtx")
def test_looking_loads_no_polygraphy() -> None:
    """Asking what is installed leaves the choice of the library open."""
    loaded = output_of(
        "import sys\n"
        "from precision_bisect.backends.tensorrt.flavour import load_flavour\n"
        "load_flavour('tensorrt-rtx')\n"
        "print(*(name for name in sys.modules if name.startswith('polygraphy')))"
    )
    assert "" == loaded.strip()


def test_importing_the_package_loads_no_tensorrt() -> None:
    """No module of the package loads a TensorRT library by being imported."""
    loaded = output_of(
        "import sys\n"
        "import precision_bisect.backends.tensorrt.tensorrt_backend\n"
        "print(*(name for name in sys.modules if name.startswith(('tensorrt', 'polygraphy'))))"
    )
    assert "" == loaded.strip()


@pytest.mark.usefixtures("rtx")
def test_a_comparator_before_does_not_settle_the_library() -> None:
    """Polygraphy's comparators, imported first, do not bind it to the other library."""
    code = (
        "import polygraphy.comparator\n"
        "from polygraphy.datatype import DataType\n"
        "from precision_bisect.backends.tensorrt.flavour import load_flavour, use_in_polygraphy\n"
        "rtx = load_flavour('tensorrt-rtx')\n"
        "use_in_polygraphy(rtx)\n"
        "print(DataType.from_dtype(rtx.module.float16, 'tensorrt'))"
    )
    assert "float16" == output_of(code).strip()


@pytest.mark.usefixtures("rtx")
def test_one_process_uses_one_library() -> None:
    """Where Polygraphy has loaded the other library's modules, one line says so."""
    code = (
        "import polygraphy.backend.trt\n"
        "from precision_bisect.backends.tensorrt.flavour import load_flavour, use_in_polygraphy\n"
        "from precision_bisect.errors import RefusedError\n"
        "try:\n"
        "    use_in_polygraphy(load_flavour('tensorrt-rtx'))\n"
        "except RefusedError as error:\n"
        "    print(error.one_line())"
    )
    said = (
        "Polygraphy uses the other TensorRT library in this process, so tensorrt-rtx cannot be "
        "used, too; start another process for it"
    )
    assert said == output_of(code).strip()
