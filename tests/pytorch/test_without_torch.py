"""What PyTorch is needed for says so where it is missing."""

import subprocess
import sys

WITHOUT = """
import sys
sys.modules["torch"] = None
import precision_bisect.torch
try:
    precision_bisect.torch.find(None, [])
except precision_bisect.PrecisionBisectError as error:
    print(error)
"""


def test_without_torch_it_says_what_to_install() -> None:
    """The module is imported without torch; its function ends in one line."""
    ran = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert "pip install 'precision-bisect[torch]'" in ran.stdout, ran.stderr
    assert 1 == len(ran.stdout.splitlines())
