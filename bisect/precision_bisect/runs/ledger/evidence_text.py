"""Evidence as JSON text, for one column of the ledger."""

from precision_bisect.runs import plain_json
from precision_bisect.runs.typed_json import typed
from precision_bisect.trial import Evidence


def to_text(evidence: Evidence) -> str:
    """Return the evidence as JSON; fields that hold nothing are left out."""
    told = plain_json.plain(evidence)
    return plain_json.dumps({key: value for key, value in told.items() if value})


def from_text(text: str) -> Evidence:
    """Return the evidence that `to_text` wrote. Raises ValueError for other text."""
    return typed(Evidence, plain_json.parse(text))
