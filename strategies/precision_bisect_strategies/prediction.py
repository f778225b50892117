"""Asking the emulator, where trials are builds of an engine."""

from dataclasses import replace

from precision_bisect.protocols import Search, T
from precision_bisect.search.combinators import relay
from precision_bisect.trial import Kind, Phase, Proposal


def predicted(search: Search[T]) -> Search[T]:
    """Return the same search, asked of the emulator."""

    def ask(proposal: Proposal) -> Proposal:
        return replace(proposal, kind=Kind.PREDICT, phase=Phase.PREDICTION)

    return relay(search, ask=ask)
