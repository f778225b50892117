"""The page of typical mistakes is what the commands answer."""

import importlib
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse words its errors differently")
def test_mistakes_are_answered_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/mistakes.md is what the commands say now, with a hint and without a traceback."""
    monkeypatch.syspath_prepend(DOCS)
    mistakes = importlib.import_module("make_mistakes")
    monkeypatch.setenv("COLUMNS", mistakes.WIDTH)
    page = mistakes.page()
    assert (DOCS / "mistakes.md").read_text(encoding="utf-8") == page
    assert "Traceback" not in page
