"""A fact as every page has it: its words, how much it matters, and what may draw it."""

from enum import Enum, auto
from typing import NamedTuple

ALWAYS = 0
"""How much a fact matters, the answer and what to do first before all. A screen takes the first
that fit into it."""
NEWS = 1
"""What changes what is done with the answer."""
EVIDENCE = 2
MORE = 3
DETAIL = 4
FULL = 5
"""What is for pages with room for everything."""


class Form(Enum):
    """What a page may make of a row.

    FIGURE: the answer's own, which a page may draw large. CHART: the words of a chart. TABLE: a
    line of a table. FACT, and REMARK: a sentence. KEPT: the kept layers, which each page lists in
    its own way.
    """

    FIGURE = auto()
    CHART = auto()
    TABLE = auto()
    FACT = auto()
    REMARK = auto()
    KEPT = auto()


class Row(NamedTuple):
    """A fact in words; the lower its `level`, the more it matters."""

    label: str
    text: str
    level: int = NEWS
    form: Form = Form.FACT
