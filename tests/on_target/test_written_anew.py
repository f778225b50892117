"""The folder for a target, whose writer was killed."""

import shutil
import subprocess
import sys
from pathlib import Path

from precision_bisect.commandline.main import main

KILLED = """
import itertools, os, signal, sys
from precision_bisect.commandline.main import main

calls, sync = itertools.count(), os.fsync

def killing(file):
    sync(file)
    if next(calls) == 5:
        os.kill(os.getpid(), signal.SIGKILL)

os.fsync = killing
main(sys.argv[1:])
"""


def test_what_a_killed_writer_left_is_written_anew(
    exchanged: tuple[Path, Path], tmp_path: Path
) -> None:
    """The folder is the same as if nothing had happened, without half files."""
    folders = [tmp_path / "killed", tmp_path / "whole"]
    words = ["target", str(exchanged[0]), "--write"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *words, folders[0]], check=False)
    assert (-9, True) == (killed.returncode, any(folders[0].iterdir()))
    shutil.copytree(folders[0], tmp_path / "noted")
    noted = tmp_path / "noted" / "notes.txt"
    noted.write_text("of the user's")
    assert 2 == main([*words, str(noted.parent)]) and noted.exists()
    for folder in folders:
        assert 0 == main([*words, str(folder)])
    names = [{path.relative_to(folder) for path in folder.rglob("*")} for folder in folders]
    assert names[0] == names[1]
