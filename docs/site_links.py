"""For the site: links that leave docs/ go to the file in the repository.

`repo_url` of `mkdocs.yml` says where that is; without one they become plain text, since the site
holds the pages alone.
"""

import re
from typing import Any

_OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\(\.\./([^)]+)\)")


def on_page_markdown(markdown: str, *, config: Any, **_: object) -> str:
    """Return the page with its links out of docs/ replaced."""
    home = (config["repo_url"] or "").rstrip("/")
    return _OUTSIDE.sub(rf"[\1]({home}/blob/main/\2)" if home else r"\1 (`\2`)", markdown)
