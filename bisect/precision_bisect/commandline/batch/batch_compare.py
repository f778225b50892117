"""What changed between two batches, job by job, by the jobs' names."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_bisect.commandline.batch.batch_record import BATCH, Batch, read_batch
from precision_bisect.errors import RunFolderError, printable
from precision_bisect.runs import plain_json
from precision_bisect.runs.comparing.changes import Comparison, Side, compare, read_side

SCHEMA = 1
_FIGURES = ("error", "latency_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """A job in both batches; a side is None where that batch has no result of it."""

    name: str
    before: Side | None
    after: Side | None

    @property
    def found(self) -> Comparison | None:
        """What changed, where both have a result."""
        return compare(self.before, self.after) if self.before and self.after else None

    @property
    def same(self) -> bool:
        """Whether both keep the same layers, or have no result both."""
        found = self.found
        return found.same if found is not None else self.before is self.after

    def __str__(self) -> str:
        found = self.found
        if found is None:
            missing = "" if self.same else " before" if self.after else " after"
            return f"{self.name}: no result{missing}"
        before, after = found.before.to_json(), found.after.to_json()
        if not before["answered"] or not after["answered"]:
            said = ["the same ending" if self.same else "an answer in one of them"]
        elif found.same:
            said = [f"the same {after['kept']} kept"]
        else:
            moved = f"{len(found.added)} added, {len(found.removed)} removed"
            said = [f"{before['kept']} -> {after['kept']} kept ({moved})"]
        for key in _FIGURES:
            one, other = before[key], after[key]
            if one is not None and other is not None and one != other:
                said.append(f"{key} {one:.3g} -> {other:.3g}")
        return f"{self.name}: {', '.join(said)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchComparison:
    """All jobs of two batches, those of the later one first."""

    jobs: Sequence[JobChange]

    @property
    def same(self) -> bool:
        """Whether nothing that is kept has changed."""
        return all(job.same for job in self.jobs)

    def to_text(self) -> str:
        return "".join(f"{printable(str(job))}\n" for job in self.jobs)

    def to_json(self) -> str:
        """Return what `compare --json` prints (docs/ci.md)."""
        changes = ((job, None if job.found is None else job.found.to_json()) for job in self.jobs)
        jobs = [{"name": job.name, "same": job.same, "change": told} for job, told in changes]
        found: Mapping[str, Any] = {"schema": SCHEMA, "same": self.same, "jobs": jobs}
        return plain_json.dumps(found, indent=2) + "\n"


def compare_batches(before: Path, after: Path) -> BatchComparison | None:
    """Return what changed between the batches in two folders; None where neither holds one.

    Raises RunFolderError where only one does.
    """
    batches = [read_batch(folder) for folder in (before, after)]
    if batches == [None, None]:
        return None
    if None in batches:
        folder = before if batches[0] is None else after
        raise RunFolderError(f"{folder} holds no {BATCH}", "compare two batches, or two runs")
    first, second = (
        _sides(folder, batch) for folder, batch in zip((before, after), batches, strict=True)
    )
    jobs = [
        JobChange(name=name, before=first.get(name), after=second.get(name))
        for name in dict.fromkeys((*second, *first))
    ]
    return BatchComparison(jobs=jobs)


def _sides(folder: Path, batch: Batch | None) -> Mapping[str, Side | None]:
    """Return what each job of a batch has found; its folder may have moved since."""
    found: dict[str, Side | None] = {}
    for job in batch.jobs if batch is not None else ():
        found[job.name] = None
        with suppress(RunFolderError):
            found[job.name] = read_side(folder / Path(job.run_folder).name)
    return found
