"""What is known of a layer, piece by piece: figures, of which prose is made where it is shown."""

from typing import Any

from precision_bisect.runs.typed_json import Text


class Sign:
    """One thing that is known of a layer: its `figures` by name, and the words to show them in."""

    def __init__(self, words: str, **figures: Any) -> None:
        self.words, self.figures = words, figures

    def __str__(self) -> str:
        return self.words.format(**self.figures)


class Signs(Text):
    """What shows a cause, that first, and what else is known of the layer; a text in files."""

    def __init__(self, *signs: Sign | str) -> None:
        self.signs = signs

    def __str__(self) -> str:
        return "; ".join(map(str, self.signs))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Signs) and str(self) == str(other)

    def also(self, *signs: Sign) -> "Signs":
        """Return these signs with further ones behind them."""
        return Signs(*self.signs, *signs)
