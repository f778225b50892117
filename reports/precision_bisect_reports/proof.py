"""The certificate in one line: how many layers are shown to be needed, how, and why not more."""

from collections import Counter

from precision_bisect.errors import printable
from precision_bisect.results.result import Certificate, Need


def proof(certificate: Certificate) -> str:
    """Return the line for a plan that keeps at least one layer."""
    kept = len(certificate.checked) + len(certificate.unchecked)
    if certificate.minimal_at_limit and not certificate.minimal:
        return _at_limit(certificate, kept)
    if certificate.spread:
        return "none: more layers may be kept than needed, and luck decides which"
    implied = sum(bool(need.needed) and need.how == "implied" for need in certificate.evidence)
    dropped = len(certificate.checked) - implied
    if certificate.minimal and not implied:
        return f"minimal: dropping any one of the {kept} fails, each was tried"
    parts = [f"{dropped} of {kept} drops were tried and failed"]
    if implied:
        parts.append(f"{implied} by plans that kept more")
    if not certificate.unchecked:
        return f"all are needed if keeping more never hurts: {', '.join(parts)}"
    unproven = Counter(_state(need) for need in certificate.evidence if not need.needed)
    parts += [f"{count} {printable(state)}" for state, count in unproven.items()]
    return f"not proven minimal: {', '.join(parts)}"


def _at_limit(certificate: Certificate, kept: int) -> str:
    """Say what was proven of a search that stayed below the tolerance, and what was not."""
    within = f"minimal below {certificate.limit:.4g}" if certificate.limit else "minimal"
    return (
        f"{within}, which leaves room for the noise; by the tolerance itself "
        f"{len(certificate.checked)} of {kept} are needed"
    )


def _state(need: Need) -> str:
    """Return what is known of a layer that is not shown to be needed."""
    if need.needed is False:
        return "could go"
    if need.how == "group":
        return "failed in a group"
    if need.how == "implied":
        return "only by plans that kept more"
    return f"not tested ({need.reason.partition(':')[0]})"
