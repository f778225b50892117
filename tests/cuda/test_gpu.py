"""The driver is asked through ctypes: checked against a small library with the driver's names."""

import shutil
import subprocess
from pathlib import Path

import pytest

from precision_bisect.machine.gpu import GpuDevice, cuda_version, devices, driver_version

DRIVER = """
#include <stddef.h>
#include <string.h>
int cuInit(unsigned flags) { return flags ? 1 : STATUS; }
int cuDriverGetVersion(int *v) { *v = 13020; return 0; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *handle, int ordinal) { *handle = 10 + ordinal; return 0; }
int cuDeviceGetName(char *name, int size, int handle) {
  strncpy(name, handle == 10 ? "First GPU" : "Second GPU", size); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int handle) { *bytes = (size_t)5 << 32; return 0; }
int cuDeviceGetAttribute(int *v, int attribute, int handle) {
  *v = attribute == 75 ? 8 : attribute == 76 ? handle - 4 : -1; return 0; }
int nvmlInit_v2(void) { return STATUS; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) {
  strncpy(text, "580.1.2", size); return 0; }
"""
"""The functions that are called, with the signatures of cuda.h and nvml.h."""

needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")


def driver(folder: Path, *, status: int = 0, source: str = DRIVER) -> list[str]:
    """Compile the library and return the names to look it up by."""
    library = folder / "libdriver.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", f"-DSTATUS={status}", "-xc", "-", "-o", library],
        input=source,
        text=True,
        check=True,
    )
    return ["libabsent.so.1", str(library)]


@needs_compiler
def test_devices(tmp_path: Path) -> None:
    """Each GPU is told with its name, compute capability and memory, in the driver's order."""
    expected = [
        GpuDevice(name="First GPU", compute_capability="8.6", memory_mib=20480),
        GpuDevice(name="Second GPU", compute_capability="8.7", memory_mib=20480),
    ]
    assert expected == devices(driver(tmp_path))


@needs_compiler
def test_versions(tmp_path: Path) -> None:
    """The driver's version and the CUDA version that it serves are told."""
    libraries = driver(tmp_path)
    assert ("580.1.2", "13.2") == (driver_version(libraries), cuda_version(libraries))


@needs_compiler
def test_driver_that_refuses(tmp_path: Path) -> None:
    """A driver without a device (status 100) shows no GPU, and nothing is raised."""
    libraries = driver(tmp_path, status=100)
    assert ([], None) == (devices(libraries), driver_version(libraries))


@needs_compiler
def test_driver_too_old(tmp_path: Path) -> None:
    """A driver without the functions shows no GPU, and nothing is raised."""
    libraries = driver(tmp_path, source="int cuInit(unsigned flags) { return 0; }")
    assert ([], None, None) == (
        devices(libraries),
        cuda_version(libraries),
        driver_version(libraries),
    )


def test_no_driver() -> None:
    """Where there is no driver there is no GPU, and nothing is raised."""
    absent = ["libabsent.so.1"]
    assert ([], None, None) == (devices(absent), cuda_version(absent), driver_version(absent))
