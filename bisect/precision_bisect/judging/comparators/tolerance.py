"""Tolerances: one number, or one per output."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from precision_bisect.errors import UsageError
from precision_bisect.options import Options
from precision_bisect.protocols import Comparator
from precision_bisect.settings.sample_options import Limits, relative_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """A default limit and limits of single outputs. Limits are finite and not negative."""

    default: float | None = None
    per_output: Mapping[str, float] = field(default_factory=dict)

    def of(self, output: str) -> float:
        """Return the limit for an output. Raises UsageError where there is none."""
        limit = self.per_output.get(output, self.default)
        if limit is None:
            raise UsageError(
                f"no tolerance is given for output {output!r}",
                "add a bare number for the outputs not named, such as --tol 1e-2",
            )
        return limit

    @property
    def relative(self) -> "Tolerance":
        """The relative limits of a tolerance that is for both kinds."""
        return Tolerance(
            default=None if self.default is None else relative_of(self.default),
            per_output={name: relative_of(limit) for name, limit in self.per_output.items()},
        )

    def without(self, outputs: Collection[str]) -> "Tolerance":
        """Return the tolerance whose default is not for these outputs: their limit is 0."""
        return replace(self, per_output={**dict.fromkeys(outputs, 0.0), **self.per_output})

    def only(self, outputs: Collection[str]) -> "Tolerance":
        """Return the tolerance without limits of others than these outputs."""
        kept = {name: limit for name, limit in self.per_output.items() if name in outputs}
        return replace(self, per_output=kept)

    def over(self, other: "Tolerance") -> "Tolerance":
        """Return these limits, and where there are none those of `other`."""
        if self.default is not None:
            return self
        return Tolerance(default=other.default, per_output={**other.per_output, **self.per_output})

    def check_outputs(self, outputs: Sequence[str], needed: Sequence[str]) -> None:
        """Raise UsageError for a limit of an unknown output, and for a needed one without any."""
        for name in self.per_output:
            if name not in outputs:
                raise UsageError(
                    f"a tolerance is given for {name!r}, which is no output of the model",
                    f"its outputs are {', '.join(outputs)}",
                )
        for name in needed:
            self.of(name)


def tolerance_from(limits: Limits) -> Tolerance:
    """Return the tolerance for limits as the options hold them."""
    by_name = dict(limits) if isinstance(limits, Mapping) else {"": limits}
    by_output = {name: float(limit) for name, limit in by_name.items() if limit is not None}
    return Tolerance(default=by_output.pop("", None), per_output=by_output)


STEP = 1.0
"""The least limit that lets integers differ: those below say nothing of sizes."""


def by_size(options: Options, integers: Collection[str]) -> Sequence[str]:
    """Return the integer outputs that a limit is given for in their unit: one step, or more.

    A limit by the output's name goes before one for all. Below a step --tol means the share of
    elements that may differ, or the other outputs.
    """
    tolerances = (tolerance_from(limits) for limits in (options.tol, options.atol))
    limits = [(tolerance.per_output, tolerance.default) for tolerance in tolerances]

    def limit(name: str) -> float:
        named = [some[name] for some, _ in limits if name in some]
        return max(named or [default or 0.0 for _, default in limits])

    return [name for name in integers if options.check is None and limit(name) >= STEP]


def tolerance_of(comparator: Comparator) -> float | Mapping[str, Any] | None:
    """Return the one limit if there is only one, else all as the comparator lists them."""
    settings = comparator.settings()
    limit = comparator.tolerance
    kinds = ("atol", "rtol", "classes")
    limits = {value for key in kinds for value in settings.get(key, {}).values()}
    if limit is None or "atol" not in settings or limits - {0.0} == {limit}:
        return limit
    return {key: settings[key] for key in kinds if key in settings}
