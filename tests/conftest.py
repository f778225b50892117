"""The real TensorRT-RTX for tests in several folders; what injected faults came to, at the end."""

import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from precision_bisect.backends.tensorrt.flavour import Flavour, load_flavour
from precision_bisect.errors import PluginError
from process_state import changes_since, process_state, threads_left

# How long an example takes says more of what else the machine is doing. By day the examples are
# always the same, so that a failure is one of the change; others are drawn each night, and one
# that fails is kept for the next run, and printed so that it can be had elsewhere.
PLAIN = settings(
    settings.get_profile("default"), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("nightly", PLAIN, max_examples=1000, print_blob=True)
settings.register_profile("unhurried", PLAIN, derandomize=True, max_examples=50)
settings.load_profile("unhurried")

# A record of a ledger waits for the disk, and a small search does so for half of its time. Memory
# makes nobody wait; where nothing may be executed in it, or room is short, the disk has to do.
MEMORY = Path("/dev/shm")
ROOM = 4 << 30
if (
    "TMPDIR" not in os.environ
    and MEMORY.is_dir()
    and shutil.disk_usage(MEMORY).free > ROOM
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
):
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# In every process that imports NumPy, OpenBLAS's threads spin for a while before they sleep.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Some containers have Python write no bytecode; each of a thousand processes would compile all
# sources then, for half a second, and each worker of `-n` rewrite all asserts.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Background jobs of a script ignore Ctrl-C, and what tests start and interrupt inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Have Python processes begin at once, except at night."""
    at_night = config.getoption("hypothesis_profile", None) == "nightly"
    if sys.platform == "linux" and not at_night:
        import warm_processes

        warm_processes.install()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files alone whose tests are all deselected: torch takes five seconds to import."""
    if "not (nightly or models" not in config.getoption("markexpr") or collection_path.is_dir():
        return None
    return b"\npytestmark = pytest.mark.models\n" in collection_path.read_bytes() or None


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    """Fail the test that leaves its process changed or at work, and not one that comes later."""
    before, threads = process_state(), threading.enumerate()
    yield
    assert {} == changes_since(before)
    assert [] == threads_left(threads)


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have processes begin as users start them."""
    if warm_processes := sys.modules.get("warm_processes"):
        monkeypatch.setattr(warm_processes.ORIGINS, "enabled", False)


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the small model, its inputs and its finished run, for all to read."""
    import tiny

    folder = tmp_path_factory.mktemp("searched")
    tiny.search(tiny.write_with_samples(folder), folder / "run")
    return folder


@pytest.fixture
def finished(searched: Path, tmp_path: Path) -> Path:
    """Return the folder of a copy of that run, whose model lies beside it."""
    shutil.copytree(searched, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


@pytest.fixture(scope="session")
def rtx() -> Flavour:
    """Return TensorRT-RTX. In CI a missing one is an error, elsewhere the test is skipped."""
    try:
        return load_flavour("tensorrt-rtx")
    except PluginError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(error.one_line())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many faults there were and what they cost, as the tests have recorded it.

    It stands here because the process that gathers the reports of `-n` reads no other conftest.
    """
    totals: dict[str, list[int]] = {}
    for report in [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]:
        for name, value in report.user_properties if report.when == "call" else ():
            if name == "faults":
                what, *figures = value
                sums = totals.setdefault(what, [0] * len(figures))
                totals[what] = [a + b for a, b in zip(sums, figures, strict=True)]
    for what, (faults, lost, repeated, wrong) in totals.items():
        terminalreporter.write_line(
            f"faults of {what}: {faults}, trials lost: {lost}, repeated: {repeated}, "
            f"wrong answers: {wrong}"
        )
