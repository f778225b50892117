"""The documents are short and read at first reading: their length, and that of their sentences."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
LONGEST_SENTENCE = 35
MEAN_SENTENCE = 17.0
README_WORDS = 900
DOCS_WORDS = 14_700
CHANGELOG_LINES = 60
CHANGELOG_WORDS = 700
TABLES = sorted((REPO / "docs" / "engines").glob("*.md"))
"""The tables that `benchmarks/engines` writes: only text outside of them is for reading."""
TABLE_WORDS = 110

PAGES = [
    REPO / "README.md",
    REPO / "CHANGELOG.md",
    *sorted((REPO / "docs").glob("*.md")),
    *(REPO / root / "README.md" for root in ("benchmarks", "strategies", "reports")),
]


def blocks(text: str) -> Iterator[tuple[bool, str]]:
    """Yield paragraphs, items of lists and cells of tables, and whether one is a cell.

    Code and headings are left out.
    """
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^#.*$|^<img.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^ *(?:[-*]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    for block in re.split(r"\n\s*\n", text):
        if not block.lstrip().startswith("|"):
            yield False, block
            continue
        for line in block.splitlines():
            for cell in re.split(r"(?<!\\)\|", line):
                yield True, cell


def sentences(block: str) -> list[str]:
    """Return the sentences of a block: code counts as one word, a link as its text."""
    block = re.sub(r"`[^`]*`", "code", block)
    block = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", block)
    return [each for each in re.split(r"[.!?](?=\s|$)", block) if re.search(r"\w", each)]


def length(text: str) -> int:
    """Return the number of words; a dash is none."""
    return sum(bool(re.search(r"\w", word)) for word in text.split())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(REPO)))
def test_no_sentence_is_long(path: Path) -> None:
    """No sentence of a page has more than 35 words, in tables either."""
    text = path.read_text(encoding="utf-8")
    found = [each for _, block in blocks(text) for each in sentences(block)]
    assert [] == [" ".join(each.split()) for each in found if length(each) > LONGEST_SENTENCE]


def test_sentences_are_short_on_average() -> None:
    """The sentences of the text, cells of tables apart, have at most 17 words on average."""
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        found = [
            length(each)
            for is_cell, block in blocks(text)
            if not is_cell
            for each in sentences(block)
        ]
        assert sum(found) <= MEAN_SENTENCE * len(found), path.relative_to(REPO)


def test_readme_is_read_in_minutes() -> None:
    """README has at most 900 words, code and tables among them."""
    assert len((REPO / "README.md").read_text(encoding="utf-8").split()) <= README_WORDS


def test_the_pages_are_few_words() -> None:
    """`wc -w docs/*.md` counts at most so many: generated pages, tables and code among them."""
    texts = (path.read_text(encoding="utf-8") for path in (REPO / "docs").glob("*.md"))
    assert sum(len(text.split()) for text in texts) <= DOCS_WORDS


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_generated_tables_say_little_more(path: Path) -> None:
    """A page of docs/engines is made of data beside it, and has at most 110 words of text."""
    text = path.read_text(encoding="utf-8")
    assert path.with_suffix(".json").is_file() and "Generated on " in text
    prose = (block for is_cell, block in blocks(text) if not is_cell)
    assert sum(map(length, prose)) <= TABLE_WORDS


def test_the_changelog_is_short() -> None:
    """CHANGELOG has at most 60 lines and 700 words."""
    text = (REPO / "CHANGELOG.md").read_text(encoding="utf-8")
    assert length(text) <= CHANGELOG_WORDS
    assert len(text.splitlines()) <= CHANGELOG_LINES


PAST = re.compile(
    r"\b(?:no longer(?! than)|mended|nowadays|formerly|search before)\b",
    re.I,
)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(REPO)))
def test_pages_say_what_is(path: Path) -> None:
    """No page tells how something came to be."""
    assert [] == PAST.findall(path.read_text(encoding="utf-8"))
