"""Each case that has made the command line fall, as a file: none does again.

They run in a process of their own, forked as those of `fuzz_run.py` are.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_no_case_of_the_corpus_falls() -> None:
    """All end by themselves, with code 0, 1 or 3, or in one line and code 2."""
    command = [sys.executable, str(HERE / "fuzz_corpus.py")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert (0, "") == (done.returncode, done.stderr), done.stdout
