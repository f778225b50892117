"""CUDA's runtime library is found where pip puts it, and a missing one is one line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = """
import os
from precision_bisect.backends.tensorrt.tensorrt_engine import load_cuda_runtime
from precision_bisect.errors import RefusedError

try:
    load_cuda_runtime()
    from polygraphy import cuda
    print(cuda.wrapper().handle._name)
except RefusedError as error:
    print(error.one_line())
print(os.environ.get("LD_LIBRARY_PATH"))
"""


def probe(folder: Path, searched: str | None) -> list[str]:
    """Return the lines of the probe in a process that finds packages in `folder`, too."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    environment.pop("LD_LIBRARY_PATH", None)
    if searched is not None:
        environment["LD_LIBRARY_PATH"] = searched
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.splitlines()[-2:]


@pytest.mark.parametrize("searched", [None, "/elsewhere"])
def test_the_library_of_pip_is_found(tmp_path: Path, searched: str | None) -> None:
    """The layout of CUDA 13's packages is known, and the search path is left as it was."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    folder = tmp_path / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    library = str(folder / "libcudart.so.13")
    subprocess.run([compiler, "-shared", "-x", "c", os.devnull, "-o", library], check=True)
    assert [library, str(searched)] == probe(tmp_path, searched)


def test_a_library_that_does_not_load_is_one_line(tmp_path: Path) -> None:
    """What the loader says comes with what to do."""
    folder = tmp_path / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    (folder / "libcudart.so.13").write_text("no library")
    said, _ = probe(tmp_path, None)
    assert said.startswith("Polygraphy cannot load CUDA's runtime library: ")
    assert said.endswith("; put the folder of libcudart.so on LD_LIBRARY_PATH")
