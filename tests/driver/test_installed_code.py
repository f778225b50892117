"""A run goes on only with the code that began it: ours, and that of the plug-ins it uses."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from patience import PATIENCE_S
from precision_bisect.machine.installed_code import code_digest
from precision_bisect.plugins import BACKENDS, STRATEGIES

REPO = Path(__file__).parents[2]
STRATEGY = (REPO / "examples" / "one_by_one" / "one_by_one.py").read_text("utf-8")
"""`OneByOne`."""


def search(place: Path, site: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    """Search the small model with what lies in a folder before what is installed."""
    asked = ["--inputs", place / "inputs.npz", "--threads", "1", "--out", place / "run"]
    asked += ["--strategy", "one-by-one", "--copies", "0", "--max-trials", "1"]
    command = [sys.executable, "-m", "precision_bisect", place / "tiny.onnx", *asked, *more]
    return subprocess.run(
        [str(part) for part in command],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with the small model and its inputs."""
    tiny.write_with_samples(tmp_path)
    return tmp_path


def refused(ran: "subprocess.CompletedProcess[str]", place: Path) -> bool:
    """Tell whether a run was refused for its code, with what to do."""
    return (2, ran.stderr.splitlines()[-1]) == (
        ran.returncode,
        f"precision-bisect: cannot resume {place / 'run'}: another build of precision-bisect or "
        "of a plug-in; run with what was used before, choose another --out, or replace it with "
        "--overwrite",
    )


def digest_with(site: Path) -> str:
    """Return the digest of what lies in a folder before what is installed."""
    told = "from precision_bisect.machine.installed_code import code_digest; print(code_digest())"
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.check_output([sys.executable, "-c", told], env=environment, text=True)


def test_an_update_is_seen(tmp_path: Path) -> None:
    """The version says the same; a changed line of a strategy of ours, and of the core, counts."""
    for root in ("bisect/precision_bisect", "strategies/precision_bisect_strategies"):
        shutil.copytree(
            REPO / root, tmp_path / Path(root).name, ignore=shutil.ignore_patterns("__pycache__")
        )
    whole = digest_with(tmp_path)
    for name in ("precision_bisect/trial.py", "precision_bisect_strategies/guided.py"):
        source = (tmp_path / name).read_text()
        (tmp_path / name).write_text(f"{source}\n# Changed.\n")
        assert whole != digest_with(tmp_path)
        (tmp_path / name).write_text(source)
    # The same code, installed elsewhere.
    assert whole.strip() == code_digest()


def test_a_plug_in_that_is_used_counts(place: Path) -> None:
    """A strategy of others, in one file, is told when it was changed; one that is not used not."""
    site = place / "site"
    info = site / "theirs-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[precision_bisect.strategies]\none-by-one = theirs:OneByOne\nother = others:Other\n"
    )
    (site / "theirs.py").write_text(STRATEGY)
    (site / "others.py").write_text("")
    assert 3 == search(place, site).returncode
    (site / "others.py").write_text("# Changed.\n")
    assert 3 == search(place, site, "--resume").returncode
    (site / "theirs.py").write_text(f"{STRATEGY}\n# Changed.\n")
    assert refused(search(place, site, "--resume"), place)


def test_files_of_a_distribution_count_by_their_recorded_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Native code that a plug-in brings is not read; what pip has noted of it is."""
    info = tmp_path / "native-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: native\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[precision_bisect.backends]\nnative = native_b:X\n")
    # Newer Pythons tell only of files that are there.
    (tmp_path / "native_b").mkdir()
    for path in (tmp_path / "native_b" / "lib.so", info / "direct_url.json"):
        path.write_text("{}")
    monkeypatch.syspath_prepend(str(tmp_path))
    used = frozenset({(BACKENDS, "native")})
    digests = []
    for noted in ("aaaa", "bbbb", "aaaa"):
        names = ("native_b/lib.so", "native-1.0.dist-info/direct_url.json")
        (info / "RECORD").write_text("".join(f"{each},sha256={noted},9\n" for each in names))
        code_digest.cache_clear()
        digests.append(code_digest(used))
    assert digests[0] == digests[2] != digests[1]
    code_digest.cache_clear()


def test_what_is_used_of_ours_changes_nothing() -> None:
    """All of ours counts, whatever of it is used, and so does nothing that is not installed."""
    used = frozenset({(STRATEGIES, "guided"), (BACKENDS, "emulated"), (STRATEGIES, "gone")})
    assert code_digest() == code_digest(used)
    assert 64 == len(code_digest())
