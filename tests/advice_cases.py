"""Models that are searched and diagnosed, for the tests of advice."""

import json
from pathlib import Path
from typing import Any

import onnx

import precision_bisect
from models import save
from precision_bisect.advice.case import DiagnosedModel
from precision_bisect.comparators.choose_comparator import choose_comparator
from precision_bisect.diagnosis.diagnose import Question, diagnose
from precision_bisect.model.fp32_outputs import reference_outputs
from precision_bisect.model.load import load_model
from precision_bisect.options import Options
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Sample
from precision_bisect.results.result import Result


def searched(
    proto: onnx.ModelProto, feeds: list[Any], folder: Path, name: str = "run", **options: Any
) -> tuple[Result, dict[str, Any]]:
    """Search a model; return the result and its advice by id."""
    folder.mkdir(exist_ok=True)
    path = save(proto, folder, f"{name}.onnx")
    result = precision_bisect.find(
        path, inputs=feeds, out=folder / name, threads=1, **{"tol": 1e-2, **options}
    )
    found = json.loads((folder / name / "diagnosis.json").read_text())
    return result, {each["id"]: each for each in found["advice"]}


def case_of(path: Path, feeds: list[Sample], kept: list[str], work: Path) -> DiagnosedModel:
    """Diagnose a model with these layers as the answer."""
    model, pair = load_model(path), Pair(low="fp16", high="fp32")
    question = Question(model=model, pair=pair, kept=kept, samples=feeds, threads=1)
    findings, watched = diagnose(question)
    options = Options(model=path, tol=1e-2)
    return DiagnosedModel(
        model=model,
        pair=pair,
        findings=findings,
        watched=watched,
        samples=feeds,
        calibrating=(),
        reference=reference_outputs(model, feeds),
        comparator=choose_comparator(options, [each.name for each in model.outputs]),
        work=work,
        threads=1,
    )
