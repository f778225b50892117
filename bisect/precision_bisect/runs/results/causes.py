"""The causes that a diagnosis tells apart."""

from enum import StrEnum


class Cause(StrEnum):
    """Why a layer needs the higher type, "" where that is not known.

    Some lack `digits`, which TF32 has no more of; the others lack range.
    """

    # The gravest is looked for first, by the module of its name in `explaining/diagnosis/causes`.
    digits: bool

    OVERFLOW = "overflow"
    CLIPPING = "clipping"
    OUTLIERS = "outliers"
    UNDERFLOW = "underflow"
    INDICES = "indices", True
    CANCELLATION = "cancellation", True
    ROUNDING = "rounding", True
    UNKNOWN = ""

    def __new__(cls, name: str, digits: bool = False) -> "Cause":
        cause = str.__new__(cls, name)
        cause._value_, cause.digits = name, digits
        return cause
