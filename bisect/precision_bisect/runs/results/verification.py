"""What one build of a found plan showed: in words, as `verify.json`, and read back from there."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from precision_bisect.errors import ExitCode, counted, first_of, printable
from precision_bisect.runs import plain_json
from precision_bisect.trial import Honour, LayerHonour, Outcome, TrialStatus

Fault: TypeAlias = Literal["plan", "model", "unclear"]
_WORDS = {
    Honour.HONOURED: "honoured",
    Honour.DEMOTED: "DEMOTED",
    Honour.NOT_OBSERVABLE: "not observable",
}
_WIDTH = 80
_MOST_LISTED = 4
_MOST_LAYERS = 8
_FAULTS: Mapping[Fault, str] = {
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
class Verification:
    """What one build of a plan showed: the contents of `verify.json`, version 1.

    `unlike` are settings that the run had otherwise. `layers` are the kept ones as the engine
    shows them, `listed` the names that the builder gave with a note. `failure` is how the build
    failed, if it did, `fp32_failure` how every layer in FP32 did, `fault` what is to blame.
    """

    schema: Literal[1] = 1
    backend: str
    remark: str
    unlike: Sequence[str] = ()
    kept: Sequence[str]
    exit_code: ExitCode = field(init=False)
    honoured: bool | None = field(init=False)
    layers: Sequence[LayerHonour] = ()
    notes: Sequence[str] = ()
    listed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    failure: str | None = None
    fp32_failure: str | None = None
    fault: Fault | None = None
    summary: str = field(init=False)
    engine: EngineFacts | None = None

    def __post_init__(self) -> None:
        honoured = self._honoured()
        # 0 only where every kept layer was seen honoured.
        exit_code = ExitCode.OK if honoured else ExitCode.NO_PLAN
        if self.failure is not None:
            exit_code = ExitCode.NO_PLAN if self.fault == "plan" else ExitCode.NOT_BUILT
        elif honoured is None:
            exit_code = ExitCode.NOT_OBSERVABLE
        object.__setattr__(self, "honoured", honoured)
        object.__setattr__(self, "exit_code", exit_code)
        object.__setattr__(self, "summary", self._summary())

    def _honoured(self) -> bool | None:
        """Tell whether the engine keeps what it should; None where it does not show."""
        demoted = bool(self._count(Honour.DEMOTED))
        if self.failure is not None or self._count(Honour.NOT_OBSERVABLE):
            return False if demoted else None
        return not demoted

    def to_json(self) -> str:
        return plain_json.dumps(self, indent=2) + "\n"

    def to_text(self, *, verbose: bool = False) -> str:
        """Return the verdict, the counts, and what was built; then layers, and the remarks.

        Layers that are seen to be honoured are listed only where it is `verbose`.
        """
        lines = [self.verdict]
        if self.failure is None:
            lines.append(f"  {self.summary}")
        if self.engine is not None:
            lines.append(f"  {self.engine}")
        unlike = f"unlike the run: {', '.join(self.unlike)}" * bool(self.unlike)
        remarks = "; ".join(filter(None, (self.remark, unlike)))
        lines.append(f"  {self.backend}{f': {remarks}' if remarks else ''}")
        entries = [
            entry for entry in self.layers if verbose or entry.honoured is not Honour.HONOURED
        ]
        # Hundreds of layers would push the verdict off the screen.
        first_entries = entries if verbose else entries[:_MOST_LAYERS]
        for entry in first_entries:
            lines.append(f"  {_WORDS[entry.honoured]}: {printable(entry.layer)}")
            lines.append(f"    {printable(entry.evidence)}")
        for note in self.notes:
            names = self.listed.get(note)
            first_names = f": {printable(first_of(names, _MOST_LISTED))}" if names else ""
            lines.append(f"  {self.backend} remarks: {printable(note)}{first_names}")
        if len(first_entries) < len(self.layers):
            every = counted(len(self.layers), "kept layer")
            lines.append(f"  -v lists all {every}, each with its evidence")
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

    def _summary(self) -> str:
        """Return how many layers have which verdict, or why there is no engine, and the fault."""
        if self.failure is None:
            counts = [f"{self._count(honour)} {word.lower()}" for honour, word in _WORDS.items()]
            # Nothing to look at is another matter than a look that told nothing.
            gone = sum(not entry.found for entry in self.layers)
            counts[-1] += f" ({gone} in no engine layer)" * bool(gone)
            return f"{len(self.kept)} kept: {', '.join(counts)}"
        sentence = f"the build failed: {self.failure}; "
        if self.fp32_failure is None:
            return sentence + (_FAULTS["plan"] if self.fault == "plan" else _NO_PROOF)
        fault = _FAULTS[self.fault or "unclear"]
        # The same words twice tell no more.
        if self.fp32_failure in sentence:
            return sentence + fault.removesuffix(": ")
        return sentence + fault + self.fp32_failure

    def _count(self, honour: Honour) -> int:
        """Count the kept layers with a verdict; what was not looked at is not observable."""
        count = sum(entry.honoured is honour for entry in self.layers)
        unseen = max(0, len(self.kept) - len(self.layers))
        return count + (unseen if honour is Honour.NOT_OBSERVABLE else 0)


def fault_of(failure: Outcome | None, plain: Outcome | None) -> Fault | None:
    """Return what is to blame for a failed build, by that of every layer in FP32.

    That is the plan, the model (or its build), or unclear; `plain` is None where that one builds.
    """
    if failure is None:
        return None
    if plain is None:
        return "plan" if failure.status is TrialStatus.BUILD_FAILED else "unclear"
    return "model" if plain.status is failure.status else "unclear"


def failure_of(outcome: Outcome | None) -> str | None:
    """Return how a build failed, and what allows more; None where it did not."""
    if outcome is None:
        return None
    return printable(outcome.message).rstrip(".") + _MORE.get(outcome.status, "")
