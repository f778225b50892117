"""What is installed is looked up anew as folders change, and no former answer is held."""

import os
from pathlib import Path

import pytest

from precision_bisect import plugins


def test_runs_in_one_process_do_not_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook's folder is on the path, and each of its runs makes a folder in it."""
    monkeypatch.syspath_prepend(tmp_path)
    for second in range(3):
        os.utime(tmp_path, (second, second))
        assert "guided" in plugins.installed(plugins.STRATEGIES)
    assert 1 == plugins._every.cache_info().currsize
