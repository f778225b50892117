"""What others have made is neither replaced nor removed, whatever a command is told."""

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path

import pytest

import tiny
from precision_bisect.commandline.main import main
from precision_bisect.runs.belonging import RUN, holds_exports, is_run, own_files
from precision_bisect.runs.runfolder import (
    ENGINES,
    LEDGER,
    LOCK,
    LOGS,
    MIXED_MODEL,
    OWNER,
    REPORT,
    RESULT,
    TRTEXEC,
)

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = [*own_files(), LOCK, OWNER, f"{LOGS}/app.log", f"{ENGINES}/big.plan"]


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return everything in a folder with times, so that nothing was written where it is equal."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(folder.rglob("*"))
    }


def plant(folder: Path, *names: str) -> Path:
    """Write somebody's files of these names into a folder, and return it."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"accuracy": 0.93}\n')
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with the small model and its inputs."""
    tiny.write_with_samples(tmp_path)
    return tmp_path


def search(place: Path, out: Path, *more: str) -> int:
    """Return the exit code of a search."""
    asked = ["--inputs", place / "inputs.npz", "--threads", "1", "--out", out, *more]
    return main([str(each) for each in (place / "tiny.onnx", *asked)])


SHORT = ("--max-trials", "1")
SEARCHES = ((), ("--overwrite",), ("--resume",), ("--ladder", "bf16,fp16,fp32"))


@pytest.mark.parametrize(("name", "more"), [*zip(NAMES, cycle(SEARCHES), strict=False)])
def test_a_folder_that_is_no_runs_is_refused(name: str, more: Sequence[str], place: Path) -> None:
    """A search, a curve and a ladder say what is in their way, and touch nothing."""
    out = plant(place / "results", name, "notes.txt")
    before = tree(out)
    assert 2 == search(place, out, *more)
    assert 2 == main(["curve", str(place / "tiny.onnx"), "--out", str(out), "--overwrite"])
    assert before == tree(out)


def test_a_database_of_others_is_not_opened(place: Path) -> None:
    """A log that SQLite keeps beside it stays as it is, and no other file appears."""
    out = place / "results"
    out.mkdir()
    theirs = sqlite3.connect(out / LEDGER)
    theirs.execute("PRAGMA journal_mode=WAL")
    theirs.execute("CREATE TABLE trials (id INTEGER)")
    theirs.commit()
    before = tree(out)
    assert 2 == search(place, out, "--overwrite")
    assert before == tree(out)
    theirs.close()


def test_overwrite_removes_only_what_runs_write(place: Path) -> None:
    """Of logs, engines, points and rungs it takes ours, and leaves what lies beside them."""
    out = place / "run"
    assert 0 == search(place, out)
    run = [str(place / "tiny.onnx"), "--plan", str(out)]
    assert 0 == main(["export", *run, "--export-point", "culprits"])
    ours = plant(out, f"{LOGS}/000001-crashed.log", f"{ENGINES}/{'ab' * 8}/model.engine")
    plant(ours, "rung-9-bf16/x.txt", "point-culprits/mine.txt", "point-2/trtexec.sh")
    plant(ours, f"{LOGS}/app.log", f"{ENGINES}/big.plan", "notes.txt")
    assert 0 == search(place, out, "--overwrite")
    there = set(tree(out))
    assert {
        *(f"{LOGS}/app.log", f"{ENGINES}/big.plan", "notes.txt", "rung-9-bf16/x.txt"),
        *("point-culprits/mine.txt", "point-2/trtexec.sh"),
    } <= there
    assert (
        not {
            *(f"{LOGS}/000001-crashed.log", f"{ENGINES}/{'ab' * 8}", f"point-culprits/{TRTEXEC}"),
        }
        & there
    )


@pytest.mark.nightly
def test_a_cap_on_the_disk_removes_only_what_runs_write(place: Path) -> None:
    """Somebody's files in the folders of logs and engines stay, however little a run may take."""
    out = place / "run"
    assert 0 == search(place, out)
    plant(out, f"{LOGS}/app.log", f"{ENGINES}/mine/big.plan")
    (out / ENGINES / "mine" / "big.plan").write_bytes(bytes(2 << 20))
    assert 0 == search(place, out, "--overwrite", "--disk-cap", "1M")
    assert {f"{LOGS}/app.log", f"{ENGINES}/mine/big.plan"} <= set(tree(out))


@pytest.mark.parametrize("left", [RESULT, LEDGER])
def test_a_result_or_a_ledger_makes_a_folder_ours(left: str, searched: Path, place: Path) -> None:
    """Each alone is enough to replace the rest."""
    out = place / "run"
    shutil.copytree(searched / "run", out)
    for name in {RESULT, LEDGER} - {left}:
        (out / name).unlink()
    assert is_run(out)
    assert 3 == search(place, out, "--overwrite", *SHORT)


@pytest.mark.parametrize("ledger", sorted(GOLDEN.glob("*.sqlite")), ids=lambda path: path.name)
def test_ledgers_of_every_version_are_known(ledger: Path, tmp_path: Path) -> None:
    """A run of an older version can be replaced."""
    shutil.copy(ledger, tmp_path / LEDGER)
    assert is_run(tmp_path)


def test_a_ladder_is_known_by_its_rungs(tmp_path: Path) -> None:
    """Before its end it has no other ledger and no result."""
    (tmp_path / "rung-1-fp16").mkdir()
    shutil.copy(GOLDEN / "ledger_v4.sqlite", tmp_path / "rung-1-fp16" / LEDGER)
    assert is_run(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", '{"status": "found", "kept": []}', "[" * 10**5, '{"a": "\\u0000"}'],
)
def test_a_result_of_others_makes_no_folder_ours(text: str, tmp_path: Path) -> None:
    """Neither does a file that is no JSON."""
    (tmp_path / RESULT).write_text(text)
    assert not is_run(tmp_path)
    assert [RESULT] == RUN.strange(tmp_path)


def test_a_run_that_was_killed_before_its_first_record_goes_on(place: Path) -> None:
    """What it left without a ledger is its own by the note of who had taken the folder."""
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from precision_bisect.runs.locking import RunLock\n"
        "with RunLock(Path(sys.argv[1])) as lock:\n"
        "    lock.open(overwrite=False, rungs=False).write('model.fused.onnx', 'half')\n"
        "    if sys.argv[2] == 'killed':\n"
        "        os.kill(os.getpid(), 9)\n"
        "    raise SystemExit(3)\n"
    )
    for how, code in (("killed", -9), ("ended", 3)):
        out = place / how
        ran = subprocess.run([sys.executable, "-c", script, str(out), how], check=False)
        assert code == ran.returncode
        assert 3 == search(place, out, "--resume", *SHORT)
        assert not (out / OWNER).exists()


def test_exports_go_into_folders_of_exports(searched: Path, tmp_path: Path) -> None:
    """`export` writes into a new folder, again into that one, and not over somebody's files."""
    asked = ["export", str(searched / "tiny.onnx"), "--plan", str(searched / "run"), "--out"]
    ours, theirs = tmp_path / "ours", plant(tmp_path / "theirs", TRTEXEC, "scales.json")
    before = tree(theirs)
    assert [0, 0, 2] == [main([*asked, str(each)]) for each in (ours, ours, theirs)]
    assert before == tree(theirs)
    assert holds_exports(ours) and not is_run(ours)
    (ours / RESULT).write_text("{}")
    assert 2 == search(searched, ours, "--overwrite")
    assert "{}" == (ours / RESULT).read_text()
    assert (ours / MIXED_MODEL).exists()


def test_a_point_does_not_go_over_somebodys_files(searched: Path, tmp_path: Path) -> None:
    """A folder in the run that is called like that of a point is looked at in the same way."""
    run = tmp_path / "run"
    shutil.copytree(searched / "run", run)
    plant(run / "point-culprits", MIXED_MODEL)
    before = tree(run)
    asked = [str(searched / "tiny.onnx"), "--plan", str(run), "--export-point", "culprits"]
    assert 2 == main(["export", *asked])
    assert before == tree(run)


@pytest.mark.parametrize(
    "names",
    [["batch.json"], ["a.log"], ["a/result.json"], ["a/logs/app.log"], ["a/trtexec.sh"]],
    ids=str,
)
@pytest.mark.parametrize("more", [(), ("--overwrite",), ("--resume",)], ids=str)
def test_a_batch_replaces_nothing_of_others(
    names: list[str], more: tuple[str, ...], place: Path
) -> None:
    """Its record, its logs and the folders of its jobs are looked at before a job starts."""
    jobs = place / "jobs.toml"
    jobs.write_text(
        f'[[job]]\nname = "b"\nmodel = "{place / "tiny.onnx"}"\n'
        f'[[job]]\nname = "a"\nmodel = "{place / "tiny.onnx"}"\n'
    )
    out = plant(place / "results", *names)
    before = tree(out)
    assert 2 == main(["batch", str(jobs), "--out", str(out), *more])
    assert before == tree(out)


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("page.html", lambda run, file: ["report", str(run), "--out", str(file)]),
        ("a.tar.gz", lambda run, file: ["doctor", str(run), "--bundle", str(file)]),
    ],
)
def test_a_file_that_is_named_is_replaced_if_it_is_ours(
    file: str,
    command: Callable[[Path, Path], list[str]],
    searched: Path,
    tmp_path: Path,
) -> None:
    """A report and an archive are written, written again, and not over another file."""
    path = tmp_path / file
    asked = command(searched / "run", path)
    assert [0, 0] == [main(asked), main(asked)]
    path.write_text("mine")
    assert 2 == main(asked)
    assert "mine" == path.read_text()


def test_a_report_of_somebody_is_not_replaced(place: Path) -> None:
    """A folder without a run gets no report."""
    out = plant(place / "results", REPORT)
    before = tree(out)
    assert 2 == main(["report", str(out)])
    assert before == tree(out)


def test_exports_replace_links_and_not_what_they_lead_to(searched: Path, tmp_path: Path) -> None:
    """Links that are in nobody's way do not matter; one in the place of an export goes."""
    asked = ["export", str(searched / "tiny.onnx"), "--plan", str(searched / "run"), "--out"]
    out, precious = tmp_path / "out", plant(tmp_path, "precious") / "precious"
    out.mkdir()
    (out / "model.onnx").symlink_to(searched / "tiny.onnx")
    assert 0 == main([*asked, str(out)])
    (out / MIXED_MODEL).unlink()
    (out / MIXED_MODEL).symlink_to(precious)
    assert 0 == main([*asked, str(out)])
    assert not (out / MIXED_MODEL).is_symlink()
    assert '{"accuracy": 0.93}\n' == precious.read_text()


def test_a_link_in_a_foreign_folder_is_in_the_way(searched: Path, tmp_path: Path) -> None:
    """One that leads nowhere is somebody's, too."""
    asked = ["export", str(searched / "tiny.onnx"), "--plan", str(searched / "run"), "--out"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / TRTEXEC).symlink_to(tmp_path / "gone")
    assert 2 == main([*asked, str(tmp_path / "out")])
    assert (tmp_path / "out" / TRTEXEC).is_symlink()
    assert 1 == len(list((tmp_path / "out").iterdir()))
