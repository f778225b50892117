"""The site shows every page, and builds."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]


def test_every_page_is_in_the_navigation() -> None:
    """No page of docs/ is left out of the site's navigation, and none is there that is gone."""
    shown = [
        line.rpartition(" ")[2]
        for line in (REPO / "mkdocs.yml").read_text(encoding="utf-8").splitlines()
        if line.endswith(".md")
    ]
    docs = REPO / "docs"
    assert sorted(shown) == sorted(str(path.relative_to(docs)) for path in docs.rglob("*.md"))


@pytest.mark.nightly
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the group docs")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """A link whose anchor the site makes otherwise than GitHub is seen here."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    built = subprocess.run(list(map(str, command)), cwd=REPO, capture_output=True, text=True)
    assert 0 == built.returncode, built.stderr
