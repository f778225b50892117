"""The kept layers, grouped by what they are: the same operators, kept for the same cause.

A network repeats its blocks, so a few patterns tell what a list of layers hides.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from precision_bisect.errors import first_of, printable
from precision_bisect.layer_table import with_module
from precision_bisect.runs.results.causes import Cause
from precision_bisect.runs.results.result import Diagnosis, Result

MOST_PLACES = 2
_OPERATOR = re.compile("[A-Z][A-Za-z]+")
WHOLE = {
    "whole-layernormalization": "LayerNorm",
    "whole-rmsnormalization": "RMSNorm",
    "whole-groupnormalization": "GroupNorm",
    "whole-softmax": "Softmax",
    "whole-gelu": "Gelu",
}
"""What the pieces belong to, by the advice to export it whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Layers of one pattern.

    `title` says what they are, `rounds` whether only rounding is to blame. `cause` says why the
    layer that matters most is kept, or the first whose cause is known; "" where none is. In it is
    the figure of what reaches furthest. `without` are the least and the largest error where one of
    them was dropped alone. `places` are the modules, or the layers themselves where each stands
    alone.
    """

    title: str
    rounds: bool
    cause: str
    without: tuple[float, float] | None
    places: Sequence[str]
    layers: Sequence[str]

    @property
    def why(self) -> str:
        """The cause, and the error without one of the layers."""
        return "; ".join(part for part in (self.cause, self._without()) if part)

    @property
    def where(self) -> str:
        """The first places, and how many more there are."""
        return first_of(list(map(printable, self.places)), MOST_PLACES)

    def _without(self) -> str:
        if self.without is None:
            return ""
        least, most = (f"{error:.2g}" for error in self.without)
        one = "it" if len(self.layers) == 1 else "one of them"
        return f"without {one}: error {least if least == most else f'{least} to {most}'}"


def groups_of(result: Result, layers: Sequence[str]) -> list[Group]:
    """Return the groups of some kept layers: culprits first, then those that hurt most if low."""
    causes = result.causes
    patterns: dict[tuple[str, ...], list[list[str]]] = {}
    for names in _places(result, layers):
        cause_names = {causes[name].cause for name in names if name in causes}
        # Repeated blocks differ in name alone: the same operators with the same causes are one
        # finding.
        key = (*(_operator(name, causes) for name in names), "", *sorted(cause_names))
        patterns.setdefault(key, []).append(names)
    groups = [_group(result, places, causes) for places in patterns.values()]
    culprits = {culprit.layer for culprit in result.culprits}
    return sorted(
        groups,
        key=lambda group: (
            culprits.isdisjoint(group.layers),
            -(group.without or (0.0, 0.0))[1],
            group.rounds,
        ),
    )


def by_cause(result: Result, layers: Sequence[str]) -> str:
    """Return how many of some layers are kept for each cause."""
    causes = result.causes
    counts = Counter(causes[name].cause for name in layers if name in causes)
    return ", ".join(f"{count} {cause}" for cause, count in counts.most_common() if cause)


def _places(result: Result, layers: Sequence[str]) -> Iterator[list[str]]:
    """Yield the layers of each module together, those without one by themselves."""
    for module, names in groupby(layers, key=result.module_of):
        if module:
            yield list(names)
        else:
            yield from ([name] for name in names)


def _group(
    result: Result, places: Sequence[Sequence[str]], causes: Mapping[str, Diagnosis]
) -> Group:
    layers = [name for names in places for name in names]
    errors = result.certificate.errors
    known_errors = {name: error for name in layers if (error := errors.get(name)) is not None}
    worst = max(known_errors, key=lambda name: known_errors[name], default=layers[0])
    alone = len(places[0]) == 1
    diagnoses = [causes[name] for name in dict.fromkeys((worst, *layers)) if name in causes]
    where = (
        [with_module(name, result.modules.get(name, "")) for name in layers]
        if alone
        else [result.module_of(names[0]) for names in places]
    )
    return Group(
        title=_title(result, places, where),
        rounds=bool(diagnoses) and diagnoses[0].cause is Cause.ROUNDING,
        cause=_cause(diagnoses),
        without=(min(known_errors.values()), max(known_errors.values())) if known_errors else None,
        places=where if len(where) > 1 else (),
        layers=layers,
    )


def _title(result: Result, places: Sequence[Sequence[str]], where: Sequence[str]) -> str:
    causes = result.causes
    operators = ", ".join(dict.fromkeys(_operator(name, causes) for name in places[0]))
    if len(places) == 1:
        one = printable(where[0])
        return one if len(places[0]) == 1 else f"{one}: {operators}"
    if kind := _kind(result, places):
        return f"{len(places)} {kind}s: {operators} in each"
    if len(places[0]) == 1:
        return f"{len(places)} {operators} layers"
    return f"{len(places)} modules: {operators} in each"


def _kind(result: Result, places: Sequence[Sequence[str]]) -> str:
    """Return what all the layers are pieces of, "" where that is not known."""
    for advice in result.advice:
        pieces = set(advice.layers)
        if advice.id in WHOLE and all(name in pieces for names in places for name in names):
            return WHOLE[advice.id]
    return ""


def _cause(diagnoses: Sequence[Diagnosis]) -> str:
    """Return each cause, that of the first layer first, by what reaches furthest for it."""
    phrases = []
    for cause in dict.fromkeys(diagnosis.cause for diagnosis in diagnoses):
        alike = [diagnosis for diagnosis in diagnoses if diagnosis.cause == cause]
        furthest = max(alike, key=lambda diagnosis: diagnosis.largest or 0.0)
        many = f", the furthest of {len(alike)}" if len(alike) > 1 and furthest.largest else ""
        phrases.append(printable(f"{cause}{many}: {furthest.evidence}"))
    return "; ".join(phrases)


def _operator(name: str, causes: Mapping[str, Diagnosis]) -> str:
    """Return a layer's operator, without a diagnosis that which its name tells, else its name."""
    if name in causes and causes[name].operator:
        return printable(causes[name].operator)
    leaf = name.rpartition("/")[2].removeprefix("node_")
    match = _OPERATOR.search(leaf)
    return printable(match.group() if match else leaf.rstrip("0123456789._-") or leaf)
