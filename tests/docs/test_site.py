"""The site shows every page."""

from pathlib import Path

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
