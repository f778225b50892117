"""One file from the view: template, style, scripts, data, and a policy that allows nothing else.

The page may run the scripts that it holds, by their hashes, and may ask for nothing. Names come
from untrusted model files: they are data in the page, and drawn as text, never as markup.
"""

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from precision_bisect.machine.plain_files import whole, written
from precision_bisect.runs import plain_json
from precision_bisect.runs.belonging import refuse_replacing
from precision_bisect.runs.runfolder import REPORT
from precision_bisect_reports.html.source import read_source
from precision_bisect_reports.html.view import view_of

CHARTS = "echarts.common.min.js"
SCRIPTS = (
    *("base.js", "theme.js", "answer.js", "modules.js", "tree.js", "histogram.js", "detail.js"),
    *("kept.js", "charts.js", "front.js", "search.js", "curve.js", "copying.js", "main.js"),
)
"""In the order in which they are needed; together they are one function."""

_GENERATOR = b'<meta name="generator" content="precision-bisect">'
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the report of a run folder, to `out` or into the folder, and return its path.

    The run may be finished or go on. The same folder gives the same file, byte for byte. Raises
    RunFolderError for a folder that is no run's, where the file cannot be written, and where `out`
    is there and is no report.
    """
    path = folder / REPORT if out is None else out
    if out is not None:
        refuse_replacing(out, _GENERATOR)
    text = page(view_of(read_source(folder), folder))
    with written(str(path), "name another file by --out"), whole(path) as stream:
        stream.write(text.encode("utf-8", errors="replace"))
    return path


def page(view: Mapping[str, Any]) -> str:
    """Return the page that shows a view (see `view_of`)."""
    style, charts, script = _asset("report.css"), _asset(CHARTS), _script()
    policy = (
        f"default-src 'none'; script-src {_hash(charts)} {_hash(script)}; "
        f"style-src {_hash(style)}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    return Template(_asset("report.html")).substitute(
        policy=policy, style=style, data=embedded(view), charts=charts, script=script
    )


def embedded(view: Mapping[str, Any]) -> str:
    """Return JSON that no HTML parser takes for anything but text."""
    text = plain_json.dumps(view, separators=(",", ":"))
    return text.translate(_ESCAPES)


@cache
def _script() -> str:
    """Return our scripts as one function, so that none of their names is global."""
    return "".join(['(() => {\n"use strict";\n', *map(_asset, SCRIPTS), "})();\n"])


@cache
def _asset(name: str) -> str:
    return files("precision_bisect_reports.html").joinpath("assets", name).read_text("utf-8")


def _hash(text: str) -> str:
    """Return the source expression of an inline script or style with this text."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
