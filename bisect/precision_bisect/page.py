"""The page at the end of a run: `report.html`, by whatever report is installed for it."""

from pathlib import Path

from precision_bisect.errors import PrecisionBisectError
from precision_bisect.plugins import REPORTS, load


def leave_page(folder: Path) -> str:
    """Write the page of a run folder; return what went wrong in one line, "" for nothing.

    The run stands whatever becomes of its page.
    """
    try:
        load(REPORTS, "html")(folder)
    except PrecisionBisectError as error:
        return error.one_line()
    return ""
