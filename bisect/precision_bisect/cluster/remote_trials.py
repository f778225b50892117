"""What child processes of a worker elsewhere do, and what they give back."""

import pickle
from dataclasses import dataclass, replace
from pathlib import Path

from precision_bisect.backends.choose_backend import pick_backend
from precision_bisect.isolation.described import Survey, survey
from precision_bisect.isolation.kit import Kit
from precision_bisect.run_folder.runfolder import ENGINES
from precision_bisect.search.evaluation import Evaluator


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteKit:
    """Makes what a kit makes, on a machine where its files are elsewhere.

    `kit` is the file of a pickled `Kit` without samples, `samples` that of those, `model` and
    `keep` the places here of what the kit knows by other paths.
    """

    kit: Path
    samples: Path
    model: Path
    keep: Path

    def evaluator(self, work: Path) -> Evaluator:
        """Return the evaluator; see `Kit.evaluator`."""
        return self.unpacked().evaluator(work)

    def unpacked(self) -> Kit:
        """Return the kit. Raises UsageError where the script of its check does not run here."""
        kit: Kit = pickle.loads(self.kit.read_bytes())
        return replace(
            kit,
            options=replace(kit.options, model=self.model),
            samples=pickle.loads(self.samples.read_bytes()),
            keep=self.keep,
            engines=self.keep / ENGINES if kit.engines else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteBackend:
    """Which backend a worker has, why that one, and what it says of itself."""

    backend: str
    why: str
    survey: Survey


def describe_backend(away: Path, work: Path) -> RemoteBackend:
    """Choose and make the backend of a pickled `RemoteKit`, and return what there is to say of it.

    `work` is an empty folder. Raises what both do.
    """
    kit = pickle.loads(away.read_bytes()).unpacked()
    name, why = pick_backend(kit.options)
    kit = replace(kit, options=replace(kit.options, backend=name))
    return RemoteBackend(backend=name, why=why, survey=survey(kit.backend(work)))
