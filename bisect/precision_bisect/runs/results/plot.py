"""The curve as a picture, for notebooks and files."""

from dataclasses import dataclass
from pathlib import Path

from precision_bisect.errors import UsageError


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture that notebooks show; `svg` is its text, which `save` writes to a file."""

    svg: str

    def __repr__(self) -> str:
        return '<the curve as SVG; .save("curve.svg") writes it>'

    def save(self, path: str | Path) -> None:
        """Write the picture, to be opened in any browser. Raises UsageError."""
        try:
            Path(path).write_text(self.svg, encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot write {path}: {error}", "choose another path") from error

    def _repr_svg_(self) -> str:
        return self.svg

    _repr_html_ = _repr_svg_
