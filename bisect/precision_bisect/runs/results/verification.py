"""What one build of a found plan showed: in words, as `verify.json`, and read back from there."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from precision_bisect.errors import ExitCode, counted, first_of, printable
from precision_bisect.runs import plain_json
from precision_bisect.runs.runfolder import VERIFIED
from precision_bisect.runs.typed_json import read_typed
from precision_bisect.trial import Evidence, Honour, LayerHonour, Outcome, TrialStatus

_WORDS = {
    Honour.HONOURED: "honoured",
    Honour.DEMOTED: "DEMOTED",
    Honour.NOT_OBSERVABLE: "not observable",
}
_WIDTH = 80
_MOST_LISTED = 4
_MOST_LAYERS = 8
_FAULTS = {
    "plan": "every layer in FP32 builds, so the plan is at fault",
    "model": "every layer in FP32 does not build either, so it is not the plan: ",
    "unclear": "every layer in FP32 does not build either, for another reason: ",
}
_NO_PROOF = "every layer in FP32 builds, which is no proof against the plan"
_MORE = {
    TrialStatus.TIMED_OUT: "; --build-timeout allows more",
    TrialStatus.OUT_OF_MEMORY: "; --build-memory allows more",
}


def _folded(line: str) -> str:
    """Return a line in lines of at most `_WIDTH` columns, the later ones further in."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(
        line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """The size of an engine in bytes, how many layers it has, and what they convert.

    `conversions` compute nothing: each only casts, or moves to another memory layout. `casting`
    are other layers with a cast inside.
    """

    size: int
    layers: int
    conversions: int
    casting: int

    def __str__(self) -> str:
        return (
            f"engine of {self.size / 1e6:.1f} MB, {counted(self.layers, 'layer')}, "
            f"of them conversions alone {self.conversions}, with casts inside {self.casting}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedEngine:
    """What `verify` saw: the contents of `verify.json`, version 1."""

    schema: Literal[1] = 1
    backend: str
    remark: str
    unlike: Sequence[str] = ()
    kept: Sequence[str]
    exit_code: ExitCode
    honoured: bool | None
    layers: Sequence[LayerHonour]
    notes: Sequence[str]
    listed: Mapping[str, Sequence[str]]
    failure: str | None
    fp32_failure: str | None
    fault: str | None
    summary: str
    engine: EngineFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What one build of a plan showed; `unlike` are settings that the run had otherwise.

    `failure` is how the build failed, if it did; `plain` then how that of every layer in FP32 did,
    None where that one builds.
    """

    backend: str
    remark: str
    unlike: Sequence[str] = ()
    kept: Sequence[str]
    evidence: Evidence
    failure: Outcome | None = None
    plain: Outcome | None = None
    facts: EngineFacts | None = None

    @property
    def fault(self) -> str | None:
        """What is at fault for a failed build: "plan", "model" (or the build), or "unclear"."""
        if self.failure is None:
            return None
        if self.plain is None:
            return "plan" if self.failure.status is TrialStatus.BUILD_FAILED else "unclear"
        return "model" if self.plain.status is self.failure.status else "unclear"

    @property
    def honoured(self) -> bool | None:
        """Whether the engine keeps what it should; None without one, or where it does not show."""
        if self.failure is not None or self._count(Honour.NOT_OBSERVABLE):
            return False if self.evidence.demoted else None
        return not self.evidence.demoted

    @property
    def exit_code(self) -> ExitCode:
        """0 only where every kept layer was seen honoured."""
        if self.failure is not None:
            return ExitCode.NO_PLAN if self.fault == "plan" else ExitCode.NOT_BUILT
        if self.honoured is None:
            return ExitCode.NOT_OBSERVABLE
        return ExitCode.OK if self.honoured else ExitCode.NO_PLAN

    def to_json(self) -> str:
        verified = VerifiedEngine(
            backend=self.backend,
            remark=self.remark,
            unlike=self.unlike,
            kept=self.kept,
            exit_code=self.exit_code,
            honoured=self.honoured,
            layers=self.evidence.honours,
            notes=self.evidence.notes,
            listed={listing.note: listing.names for listing in self.evidence.listed},
            failure=self.failure.message if self.failure else None,
            fp32_failure=self.plain.message if self.plain else None,
            fault=self.fault,
            summary=self.summary,
            engine=self.facts,
        )
        return plain_json.dumps(verified, indent=2) + "\n"

    def to_text(self, *, verbose: bool = False) -> str:
        """Return the verdict, the counts, and what was built; then layers, and the remarks.

        Layers that are seen to be honoured are listed only where it is `verbose`.
        """
        lines = [self.verdict]
        if self.failure is None:
            lines.append(f"  {self.summary}")
        if self.facts is not None:
            lines.append(f"  {self.facts}")
        unlike = f"unlike the run: {', '.join(self.unlike)}" * bool(self.unlike)
        remarks = "; ".join(filter(None, (self.remark, unlike)))
        lines.append(f"  {self.backend}{f': {remarks}' if remarks else ''}")
        honours = self.evidence.honours
        entries = [entry for entry in honours if verbose or entry.honoured is not Honour.HONOURED]
        first_entries = entries if verbose else entries[:_MOST_LAYERS]
        for entry in first_entries:
            lines.append(f"  {_WORDS[entry.honoured]}: {printable(entry.layer)}")
            lines.append(f"    {printable(entry.evidence)}")
        lines += [
            f"  {self.backend} remarks: {printable(note)}{self._listed(note)}"
            for note in self.evidence.notes
        ]
        if len(first_entries) < len(honours):
            lines.append(
                f"  -v lists all {counted(len(honours), 'kept layer')}, each with its evidence"
            )
        return "".join(f"{_folded(line)}\n" for line in lines)

    @property
    def verdict(self) -> str:
        """What the engine is worth, in one line."""
        count = len(self.kept)
        if self.failure is not None:
            return f"No engine: {self.summary}"
        if not count:
            return "Built: no layer is to be kept, so there is nothing to honour"
        if self.honoured:
            every = "the one kept layer" if count == 1 else f"all {count} kept layers"
            return f"Honoured: the engine computes {every} as asked"
        if self.honoured is None:
            unseen = self._count(Honour.NOT_OBSERVABLE)
            return f"Not observable: the engine does not show how {unseen} of {count} compute"
        demoted = self._count(Honour.DEMOTED)
        of = counted(count, "kept layer")
        return f"Demoted: the engine computes {demoted} of {of} lower than asked"

    @property
    def summary(self) -> str:
        """How many layers have which verdict, or why there is no engine and what is at fault."""
        if self.failure is None:
            counts = [f"{self._count(honour)} {word.lower()}" for honour, word in _WORDS.items()]
            # Nothing to look at is another matter than a look that told nothing.
            gone = sum(not entry.found for entry in self.evidence.honours)
            counts[-1] += f" ({gone} in no engine layer)" * bool(gone)
            return f"{len(self.kept)} kept: {', '.join(counts)}"
        sentence = f"the build failed: {_ending(self.failure)}; "
        if self.plain is None:
            return sentence + (_FAULTS["plan"] if self.fault == "plan" else _NO_PROOF)
        fault, again = _FAULTS[str(self.fault)], _ending(self.plain)
        # The same words twice tell no more.
        return sentence + (fault.removesuffix(": ") if again in sentence else fault + again)

    def _count(self, honour: Honour) -> int:
        """Count the kept layers with a verdict; what was not looked at is not observable."""
        count = sum(entry.honoured is honour for entry in self.evidence.honours)
        unseen = max(0, len(self.kept) - len(self.evidence.honours))
        return count + (unseen if honour is Honour.NOT_OBSERVABLE else 0)

    def _listed(self, note: str) -> str:
        """Return the first names that the builder gave with a remark."""
        names = [
            name
            for listing in self.evidence.listed
            if listing.note == note
            for name in listing.names
        ]
        return f": {printable(first_of(names, _MOST_LISTED))}" if names else ""


def _ending(outcome: Outcome) -> str:
    return printable(outcome.message).rstrip(".") + _MORE.get(outcome.status, "")


def read_verification(folder: Path) -> VerifiedEngine | None:
    """Return what `verify` has left in a run folder, None where that is nothing."""
    try:
        return read_typed(VerifiedEngine, folder / VERIFIED)
    except (OSError, ValueError):
        return None
