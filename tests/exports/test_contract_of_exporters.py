"""Exports keep the contract, one from elsewhere is written, a broken one costs nothing."""

import tarfile
from pathlib import Path

import onnx
import pytest

import tiny
from exports_models import chain, export_of
from precision_bisect.commandline.main import main
from precision_bisect.exports.export import Export
from precision_bisect.exports.write import write_exports
from precision_bisect.plugins import EXPORTERS, installed, load
from precision_bisect.runs.belonging import clear
from precision_bisect.runs.runfolder import TRTEXEC, RunFolder
from precision_bisect.testing.driving import ContractError
from precision_bisect.testing.exporter_contract import check_exporter
from precision_bisect_reports.html.source import read_source

NAMES = ("a", "b", "c")
THEIRS = """
def kept(export):
    return "\\n".join(export.kept)

def broken(export):
    raise KeyError("x")
"""


@pytest.mark.parametrize("name", sorted(installed(EXPORTERS)))
def test_ours_keep_the_contract(name: str) -> None:
    """Hostile names are written, or refused with a reason."""
    check_exporter(load(EXPORTERS, name))


def raising(export: Export) -> str:
    """Write plain plans alone."""
    return ",".join(f"{name}".encode("ascii").decode() for name in export.kept) + "."


def same(export: Export) -> str:
    """Write every plan alike."""
    return "layers"


@pytest.mark.parametrize(
    ("write", "why"), [(raising, "not NotWritable"), (same, "two plans are the same text")]
)
def test_who_breaks_it_is_found_out(write: object, why: str) -> None:
    """An error of its own and a text without the plan break the contract."""
    with pytest.raises(ContractError, match=why):
        check_exporter(write)  # type: ignore[arg-type] # it is one of the two above


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the exports of another package, as far as Python's metadata tells."""
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[precision_bisect.exports]\nkept.txt = their_exports:kept\n"
        "gone.txt = their_exports:broken\n../out.txt = their_exports:kept\n"
    )
    (tmp_path / "their_exports.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("theirs")
def test_others_exports_go_wherever_ours_go(tmp_path: Path) -> None:
    """Into the report and the bundle of a run, and away where another run takes the folder."""
    run, out = tmp_path / "run", tmp_path / "bundle.tar.gz"
    tiny.search(tiny.write_model(tmp_path / "tiny.onnx"), run)
    assert {"kept.txt", TRTEXEC} <= read_source(run).exports.keys()
    assert 0 == main(["doctor", str(run), "--bundle", str(out)])
    with tarfile.open(out) as archive:
        packed = {Path(name).name for name in archive.getnames()}
    assert {"kept.txt", TRTEXEC} <= packed
    clear(run)
    assert {"kept.txt", TRTEXEC}.isdisjoint(path.name for path in run.iterdir())


@pytest.mark.usefixtures("theirs")
def test_others_exports_are_written_and_may_break(tmp_path: Path) -> None:
    """A file of another package lies beside ours; one that raises is left out, with the reason."""
    path = tmp_path / "m.onnx"
    onnx.save(chain(NAMES), path)
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir(exist_ok=True)
    reasons = write_exports(folder, export_of(path, ["b"]))
    assert "b" == (folder.path / "kept.txt").read_text()
    assert (None, "its exporter failed: KeyError: 'x'") == (
        reasons["kept.txt"],
        reasons["gone.txt"],
    )
    assert not (tmp_path / "out.txt").exists()
    assert (folder.path / TRTEXEC).exists()
