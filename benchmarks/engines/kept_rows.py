"""Rows of a table that takes minutes, kept as they are made: a run that was cut goes on."""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from engines.environments import CACHE


class Rows:
    """The rows that a run has made, in a file until its `end`.

    Rows of other `versions` are made anew.
    """

    def __init__(self, name: str, versions: Mapping[str, str]) -> None:
        self._path = CACHE / f"{name}.rows"
        self._versions = dict(versions)
        self._rows: dict[str, Any] = {}
        CACHE.mkdir(exist_ok=True)
        lines = self._path.read_text().splitlines() if self._path.is_file() else []
        # The last line of a run that was cut may have no end.
        rows = [json.loads(line) for line in lines if line.endswith("]")]
        if rows and rows[0] == ["versions", self._versions]:
            self._rows = dict(rows)
        self._path.write_text("".join(json.dumps(row) + "\n" for row in self._rows.items()))
        self.row("versions", lambda: self._versions)

    def end(self) -> None:
        """Let the rows go."""
        self._path.unlink()

    def row(self, key: str, make: Callable[[], Any]) -> Any:
        """Return a row, made unless it is kept."""
        if key not in self._rows:
            self._rows[key] = make()
            with self._path.open("a") as file:
                file.write(json.dumps([key, self._rows[key]]) + "\n")
            print(key, str(self._rows[key])[:200], file=sys.stderr)
        return self._rows[key]
