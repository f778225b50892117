"""Nothing that is thrown at the command line makes it fall: some cases of each class.

`fuzz_run.py` throws ten thousand, with new seeds; a case that falls goes into
`model/test_unsound.py` or `inputs/test_hostile_files.py`.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from effort import nightly

HERE = Path(__file__).parent


@pytest.mark.skipif(sys.platform == "win32", reason="cases are forked")
@pytest.mark.parametrize("cases", [8, *nightly(500)])
def test_cases_of_each_class(cases: int) -> None:
    """Each ends by itself, in one line where it is refused, and writes only where it may.

    They run in a process that is nobody else's: to fork one that has opened sessions is not safe.
    """
    command = [sys.executable, str(HERE / "fuzz_run.py"), "--cases", str(cases), "--seed", "30"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (0, "") == (done.returncode, done.stderr), done.stdout
