"""A fact as every page has it: its words, how much detail shows it, and what may draw it."""

from enum import Enum, auto
from typing import NamedTuple

ALWAYS = 0
"""From which level of detail on a fact is shown: warnings, and what to do first."""
EVIDENCE = 1
MORE = 2
DETAIL = 3
FULL = 5
"""What is on no screen: only pages with room for everything show it."""


class Form(Enum):
    """What a page may make of a row.

    FIGURE: the answer's own, which a page may draw large. CHART: a part of a table or a chart, or
    its words. FACT, and REMARK: a sentence.
    """

    FIGURE = auto()
    CHART = auto()
    FACT = auto()
    REMARK = auto()


class Row(NamedTuple):
    """A fact in words, shown by pages whose level of detail is at least `level`."""

    label: str
    text: str
    level: int = ALWAYS
    form: Form = Form.FACT
