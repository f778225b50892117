"""What child processes of a worker elsewhere do, and what they give back."""

import pickle
from dataclasses import dataclass, replace
from pathlib import Path

from precision_bisect.backends.choose_backend import pick_backend
from precision_bisect.execution.described import Survey, survey
from precision_bisect.execution.evaluator_spec import EvaluatorSpec, Made
from precision_bisect.runs.runfolder import ENGINES
from precision_bisect.search.evaluation import Evaluator


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSpec:
    """Makes what a spec makes, on a machine where its files are elsewhere.

    `spec` is the file of a pickled `EvaluatorSpec` without samples, `samples` that of those,
    `model` and `keep` the places here of what the spec knows by other paths.
    """

    spec: Path
    samples: Path
    model: Path
    keep: Path

    def evaluator(self, work: Path, looked: Made | None = None) -> Evaluator:
        """Return the evaluator; see `EvaluatorSpec.evaluator`."""
        return self.unpacked().evaluator(work, looked)

    def unpacked(self) -> EvaluatorSpec:
        """Return the spec. Raises UsageError where the script of its check does not run here."""
        spec: EvaluatorSpec = pickle.loads(self.spec.read_bytes())
        return replace(
            spec,
            options=replace(spec.options, model=self.model),
            samples=pickle.loads(self.samples.read_bytes()),
            keep=self.keep,
            engines=self.keep / ENGINES if spec.engines else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteBackend:
    """Which backend a worker has, why that one, and what it says of itself."""

    backend: str
    why: str
    survey: Survey


def describe_backend(away: Path, work: Path) -> RemoteBackend:
    """Choose and make the backend of a pickled `RemoteSpec`, and return what it says of itself.

    `work` is an empty folder. Raises what both do.
    """
    spec = pickle.loads(away.read_bytes()).unpacked()
    name, why = pick_backend(spec.options)
    spec = replace(spec, options=replace(spec.options, backend=name))
    return RemoteBackend(backend=name, why=why, survey=survey(spec.made(work).backend))
