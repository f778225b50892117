"""Models that are searched and diagnosed, for the tests of advice."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

import precision_bisect
from models import save
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.explaining.advice.advise import advised
from precision_bisect.explaining.advice.diagnosed_model import DiagnosedModel
from precision_bisect.explaining.diagnosis.diagnose import Question, diagnose
from precision_bisect.explaining.diagnosis.findings import Advice, Findings, read_diagnosis
from precision_bisect.graphs.fp32_outputs import reference_outputs
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.judging.comparators.choose_comparator import choose_comparator
from precision_bisect.options import Options
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample, Search, T
from precision_bisect.runs.results.result import Result
from precision_bisect.search.case import Case
from precision_bisect.search.combinators import feed
from precision_bisect.search.other_cases import Cases
from precision_bisect.search.sample_sets import SampleSets
from precision_bisect.trial import Verdict


def searched(
    proto: onnx.ModelProto, feeds: Sequence[Any], folder: Path, name: str = "run", **options: Any
) -> tuple[Result, dict[str, Advice]]:
    """Search a model; return the result and its advice by id, as its file has it."""
    folder.mkdir(exist_ok=True)
    path = save(proto, folder, f"{name}.onnx")
    result = precision_bisect.find(
        path, inputs=feeds, out=folder / name, threads=1, **{"tol": 1e-2, **options}
    )
    return result, {advice.id: advice for advice in read_diagnosis(folder / name).advice}


def helps(advice: Advice, kept: int) -> bool:
    """Tell whether a change was tried with so many layers kept, and holds."""
    return advice.tried is not None and advice.holds and advice.tried.kept == kept


def needs_nothing(
    proto: onnx.ModelProto, feeds: list[Any], folder: Path, tol: float = 1e-2
) -> bool:
    """Tell whether a model passes with every layer low, which is what a search tries first."""
    model = load_model(save(proto, folder, "followed.onnx"))
    judge = choose_comparator(Options(model=model.path, tol=tol), [o.name for o in model.outputs])
    backend = EmulatedBackend(model)
    outputs = [backend.evaluate(Plan.of(()), feed) for feed in feeds]
    return judge.judge(outputs, reference_outputs(model, feeds)).verdict is Verdict.PASS


def case_for(
    model: Model,
    feeds: Sequence[Sample],
    *,
    scales: Scales | None = None,
    judged: bool = False,
    **options: Any,
) -> Case:
    """Return the case of a model and samples, whose outputs are there where it is `judged`."""
    chosen = Options(model=model.path, **{"threads": 1, "tol": 1e-2, **options})
    outputs = reference_outputs(model, feeds) if judged else [{} for _ in feeds]
    return Case(
        options=chosen,
        model=model,
        sets=SampleSets(feeds=feeds, pool=range(len(feeds)), reference=outputs),
        comparator=choose_comparator(chosen, [each.name for each in model.outputs]),
        scales=scales or Scales(),
    )


def case_of(path: Path, feeds: list[Sample], kept: list[str], work: Path) -> DiagnosedModel:
    """Diagnose a model with these layers as the answer."""
    case = case_for(load_model(path), feeds, judged=True)
    findings, watched = diagnose(Question(case=case, kept=kept))
    return DiagnosedModel(case=case, findings=findings, watched=watched, work=work, cases=Cases())


def tell(subject: DiagnosedModel, search: Search[T]) -> T:
    """Run what tries a diagnosed model's changes, each as often as it is asked for."""
    return feed(search, lambda batch: tuple(map(subject.cases, batch)))


def advice_on(subject: DiagnosedModel) -> Findings:
    """Return the findings of a diagnosed model with all advice."""
    return tell(subject, advised(subject))
