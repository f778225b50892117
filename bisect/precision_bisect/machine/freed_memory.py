"""Memory that was freed, and that the C library keeps for itself."""

import ctypes


def trim() -> None:
    """Give freed memory back to the system, if the C library is one that keeps it (glibc).

    It is worth it after something large: a session over gigabytes of weights has freed half as
    much again that nothing of that size asks for, and one over thousands of nodes 50 MB.
    """
    try:
        release = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library has no such function
        return
    release(0)
