"""The certificate in one line: how many layers are shown to be needed, how, and why not more."""

from collections import Counter

from precision_bisect.errors import printable
from precision_bisect.runs.results.certificates import Certificate, Need, Uncertified
from precision_bisect.runs.results.result import Result


def proof(result: Result) -> str:
    """Return the line for a plan that keeps at least one layer."""
    certificate, modules = result.certificate, result.by_modules
    if certificate.uncertified is Uncertified.MODULES and modules is not None:
        which = "the one module" if len(modules.names) == 1 else "any one module"
        return f"minimal by modules: dropping {which} fails, each was tried"
    kept = len(certificate.evidence) or len(certificate.checked) + len(certificate.unchecked)
    if certificate.minimal and kept == 1:
        return f"{certified(certificate)}: dropping the one layer fails, as was tried"
    if certificate.minimal:
        return f"{certified(certificate)}: dropping any one of the {kept} fails, each was tried"
    if certificate.minimal_at_limit:
        return (
            f"{_below(certificate)}, which leaves room for the noise; by the tolerance itself "
            f"{len(certificate.checked)} of {kept} are needed"
        )
    if certificate.spread:
        return "none: more layers may be kept than needed, and luck decides which"
    predicted, told = len(certificate.predicted), certificate.forecasts
    if certificate.minimal_by_forecasts and told is not None:
        return (
            f"{_below(certificate)} by builds and forecasts: {kept} needed, "
            f"{kept - predicted} by builds, {predicted} by forecasts that were right in "
            f"{told.right} of {told.builds} builds; {told.confidence:.0%} confident that "
            + (f"at most {told.wrong_at_most} can go" if told.wrong_at_most else "none can go")
        )
    unproven = Counter(_state(need) for need in certificate.evidence if not need.needed)
    parts = [f"{len(certificate.checked)} of {kept} drops were tried and failed"]
    parts += [f"{count} {printable(state)}" for state, count in unproven.items()]
    return f"not proven minimal: {', '.join(parts)}"


def certified(certificate: Certificate) -> str:
    """Return in a few words what is proven."""
    if certificate.minimal:
        return "minimal"
    by_forecasts = certificate.minimal_by_forecasts and not certificate.minimal_at_limit
    return "minimal by builds and forecasts" if by_forecasts else "not proven minimal"


def _below(certificate: Certificate) -> str:
    """Return "minimal", with the limit of a search that stayed below the tolerance."""
    return f"minimal below {certificate.limit:.4g}" if certificate.limit else "minimal"


def _state(need: Need) -> str:
    """Return what is known of a layer that is not shown to be needed."""
    if need.needed is False:
        return "could go"
    if need.how == "predicted":
        return "forecast to fail"
    return f"not tested ({need.reason.partition(':')[0]})"
