"""Writes docs/symptoms.md, which case a wrong FP16 model is: python docs/make_symptoms.py.

Every row and recipe is a model that is searched by the command; what it prints is what they show.
"""

import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from field_cases import FieldCase, clipped_norm, indices
from models import CANCELLATION, UNDERFLOW, parse, save
from norm_spellings import SOFTMAXES, activation, group_norm, large, layer_norm
from precision_bisect.commandline.main import main
from precision_bisect.runs.results.endings import Status
from reported_models import (
    Reported,
    attention,
    deep,
    detector,
    experts,
    halved,
    large_weight,
    log_mel,
    raw_head,
    recurrent,
    stretched,
    unknown,
)

PAGE = Path(__file__).with_name("symptoms.md")
RUN = "run"
HERE = f"--backend emulated --target tensorrt --threads 1 --out {RUN}"
"""Flags that make a run print the same on every machine."""
KEPT = r"\d+ of \d+ layers? stays? FP32"
HELPS = r"What helps: ([A-Z].+?) (?:\1|Tried, )"
BETTER = r"(?:instead .+?, 0 kept|fused \d.+?: 0 of .+?\))"
REACHES = r"overflow: (?:output|weight) reaches [^\s,]+"
BORN = r"NaN or Inf is born in \S+: inf"
LOST = r"underflow: \d+% of the output is below 6.1e-05"
CHOSEN = r"chosen by (?:NonMaxSuppression|ArgMax) \(\w+\)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What people see, why, and the model that shows it.

    `prints` and `helps` are patterns of what the command prints, of which the page shows the
    group, or all that matches. `status` is how the run ends, None where it is refused, `causes`
    are those of the kept layers, and `advice` is the id of the first that passes, "" for none.
    """

    symptom: str
    cause: str
    case: Callable[[], Reported]
    prints: str
    helps: str = HELPS
    flags: str = "--tol 1e-2"
    status: Status | None = Status.FOUND
    causes: frozenset[str] = frozenset({"overflow"})
    advice: str = ""


def text(body: str, *values: float) -> Callable[[], Reported]:
    """Return a case of a model as ONNX text and one sample of its input `x`."""
    return lambda: (parse(body), [{"x": np.array(values, np.float32)}])


def of_field(case: Callable[[], FieldCase]) -> Callable[[], Reported]:
    """Return a case of a field case: its model and samples."""

    def made() -> Reported:
        field = case()
        return field.model, field.samples

    return made


KINDS = (
    Kind(
        symptom="NaN or garbage in a Transformer",
        cause="LayerNorm in pieces: Pow overflows",
        case=lambda: (parse(layer_norm()), large()),
        prints=REACHES,
        advice="whole-layernormalization",
    ),
    Kind(
        symptom="The same in an LLM",
        cause="RMSNorm in pieces",
        case=lambda: (parse(layer_norm(centred=False)), large()),
        prints=REACHES,
        advice="whole-rmsnormalization",
    ),
    Kind(
        symptom="The same in a U-Net or VAE",
        cause="GroupNorm in pieces",
        case=lambda: (parse(group_norm()), large()),
        prints=REACHES,
        advice="whole-groupnormalization",
    ),
    Kind(
        symptom="NaN in embeddings, only with padding",
        cause="F.normalize's epsilon, 1e-12, is 0 in FP16",
        case=of_field(clipped_norm),
        prints=LOST,
        causes=frozenset({"underflow"}),
        advice="epsilon",
    ),
    Kind(
        symptom="NaN from attention on",
        cause="a mask of -1e9 is -inf in FP16",
        case=attention,
        prints=REACHES,
        advice="mask",
    ),
    Kind(
        symptom="NaN for confident inputs",
        cause="Softmax in pieces: Exp of wide logits",
        case=lambda: (parse(activation(SOFTMAXES["plain"])), large(8.0)),
        prints=REACHES,
        advice="whole-softmax",
    ),
    Kind(
        symptom="Boxes or classes of other rows",
        cause="index arithmetic in floats above 2048",
        case=of_field(indices),
        prints=r"indices: output holds whole numbers up to \d+",
        helps=KEPT,
        causes=frozenset({"rounding", "indices"}),
    ),
    Kind(
        symptom="Other boxes, or another number of them",
        cause="near ties in NMS",
        case=detector,
        prints=CHOSEN,
        flags="--tol 1e-3",
        causes=frozenset({"rounding"}),
        advice="selection",
    ),
    Kind(
        symptom="Other labels, tokens or experts",
        cause="near ties in ArgMax or TopK",
        case=experts,
        prints=CHOSEN,
        helps=r"Judge before ArgMax",
        flags="--tol 1e-3",
        causes=frozenset({"rounding"}),
        advice="selection",
    ),
    Kind(
        symptom="A converted file gives Inf",
        cause="the file itself casts to FP16",
        case=halved,
        prints=r"\w+ leaves the range in \d of \d samples",
        helps=r"\d of \d layers stay FP32",
        causes=frozenset({"overflow"}),
        advice="scale",
    ),
    Kind(
        symptom="Small differences are wrong",
        cause="near equals are subtracted",
        case=text(CANCELLATION, 0.1, 0.2, 0.3, 0.4),
        prints=r"cancellation: the result is \S+ times smaller than what is added",
        helps="Nothing is known that would help",
        causes=frozenset({"rounding", "cancellation"}),
    ),
    Kind(
        symptom="A bit off everywhere",
        cause="each layer rounds, none breaks it",
        case=deep,
        prints="No single layer breaks FP16; rounding is spread over the network",
        helps="loosen the tolerance",
        flags="--atol 4e-4",
        causes=frozenset({"rounding"}),
    ),
    Kind(
        symptom="Inf from one layer on, for any input",
        cause="a weight beyond FP16's range",
        case=large_weight,
        prints=REACHES,
        advice="bf16-kept",
    ),
    Kind(
        symptom="Zeros, or Inf behind them",
        cause="factors of 1e-5 multiply to 0",
        case=text(UNDERFLOW, 1, 2, 3, 4),
        prints=LOST,
        causes=frozenset({"underflow", "overflow"}),
        advice="bf16-kept",
    ),
    Kind(
        symptom="Errors grow along a sequence",
        cause="an LSTM's state is rounded at each step",
        case=recurrent,
        prints="rounding: FP16 rounds to 11 significant bits",
        helps=KEPT,
        flags="--tol 5e-4",
        causes=frozenset({"rounding"}),
    ),
    Kind(
        symptom="INT8: one layer ruins all",
        cause="one channel is far larger than the others",
        case=stretched,
        prints=r"outliers: input reaches \d+, \d+ times its root mean square, in channel \d+",
        flags="--low int8 --tol 0.1",
        causes=frozenset({"outliers"}),
        advice="smooth",
    ),
    Kind(
        symptom="All passes, and the engine is wrong",
        cause="outputs are smaller than the tolerance",
        case=text("(float[4] x) => (float[4] y) <float a = {1e-6}> { y = Mul(x, a) }", 1, 2, 3, 4),
        status=Status.NOTHING_TO_KEEP,
        prints="zeros in its place would pass",
        helps=r"judge relatively by --metric snr --tol 40",
        causes=frozenset(),
    ),
    Kind(
        symptom="An operator is unknown",
        cause="a plug-in of TensorRT, or a custom operator",
        case=unknown,
        status=None,
        prints="an operator, domain or opset that it does not know cannot be judged here",
        helps="--ort-custom-ops LIB.so registers operators",
        causes=frozenset(),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is typed for a kind of network, what is printed of a small one, and words."""

    network: str
    typed: str
    case: Callable[[], Reported]
    prints: Sequence[str]
    words: str
    flags: str = "--tol 1e-2"


RECIPES = (
    Recipe(
        network="YOLO",
        typed="yolo.onnx --inputs images/",
        case=raw_head,
        flags="--check boxes --tol 0.05",
        prints=(rf"Nothing to keep: {KEPT}", r"error [^,]+, tolerance 0.05"),
        words="""\
First suspect: the judge. A tolerance counts boxes that no score detects, and rows that
NonMaxSuppression chooses otherwise. `boxes` [matches them](comparators.md#ready-made-checks).""",
    ),
    Recipe(
        network="ViT, CLIP",
        typed="clip.onnx --inputs inputs/",
        case=of_field(clipped_norm),
        prints=(KEPT, BETTER),
        words="""\
First suspects: F.normalize's epsilon, and LayerNorm in pieces, with its
[fused form](advice.md#the-fused-form).""",
    ),
    Recipe(
        network="U-Net, VAE",
        typed="unet.onnx --inputs latents/",
        case=lambda: (parse(group_norm()), large()),
        prints=(KEPT, BETTER),
        words="""\
First suspect: the square in a norm, as in the [tutorial](tutorial.md).""",
    ),
    Recipe(
        network="LLM",
        typed="decoder.onnx --inputs prompts/",
        case=attention,
        prints=(KEPT, BETTER),
        words="""\
First suspects: the mask's constant, RMSNorm, and outlier channels. Where tokens are chosen, judge
the logits.""",
    ),
    Recipe(
        network="ASR",
        typed="asr.onnx --inputs clips/",
        case=log_mel,
        prints=(
            LOST,
            r"Keep these layers in BF16 instead of FP32",
            "Tried, and does not hold: Raise epsilon to what the low type can hold",
        ),
        words="""\
First suspect: features that the graph computes, here a logarithm with a floor of 1e-10.""",
    ),
)

HEAD = """\
# My FP16 model is wrong: which case is mine?

What is printed, and what helps, are lines of the search or of `explain`, of small models that have
the problem, on the emulator, for TensorRT.

## NaN or Inf: three steps

1. Where does it begin? `precision-bisect explain model.onnx --inputs inputs/ -v` prints
   `{born}`, with causes and what helps.
2. What must stay FP32? `precision-bisect model.onnx --inputs inputs/ --tol 1e-2` prints
   `{kept}`. Do what a line `instead` or `fused` names, or deploy `model.mixed.onnx`.
3. Does the engine obey? `precision-bisect verify model.onnx` [says so](honoured.md).

Give [real inputs](inputs.md): made-up ones may miss what overflows in use.

## Which kind

More: [causes](diagnosis.md#causes), [advice](advice.md).

| you see | because | printed | what helps |
|---|---|---|---|
"""
RECIPES_HEAD = """
## Recipes

The screens are of small models; [measured](../benchmarks/README.md) are whole networks, too.
"""


def page(work: Path) -> str:
    """Run all in folders inside `work`, kinds in those of their symptoms; return the page."""
    rows, recipes = [], []
    for kind in KINDS:
        printed = run(work / kind.symptom, kind.case, kind.flags)
        told, helps = shown(kind.prints, printed), shown(kind.helps, printed)
        rows.append(f"| {kind.symptom} | {kind.cause} | `{told}` | `{helps}` |\n")
    for recipe in RECIPES:
        printed = run(work / recipe.network, recipe.case, recipe.flags)
        lines = "\n".join(shown(each, printed) for each in recipe.prints)
        recipes.append(
            f"\n### {recipe.network}\n\n```\n"
            f"$ precision-bisect {recipe.typed} {recipe.flags}\n{lines}\n```\n\n{recipe.words}\n"
        )
    first = work / KINDS[0].symptom
    born = shown(BORN, command(first, "explain model.onnx --inputs inputs -v"))
    kept = shown(KEPT, command(first, f"show {RUN}"))
    head = HEAD.format(born=born, kept=kept)
    return f"{head}{''.join(rows)}{RECIPES_HEAD}{''.join(recipes)}"


def run(folder: Path, case: Callable[[], Reported], flags: str) -> str:
    """Search a case in a folder, and explain; return what is printed."""
    model, samples = case()
    (folder / "inputs").mkdir(parents=True)
    save(model, folder)
    for number, sample in enumerate(samples):
        path = folder / "inputs" / f"{number}.npz"
        np.savez(path, **sample)  # type: ignore[arg-type]  # no allow_pickle
    searched = command(folder, f"model.onnx --inputs inputs {flags} {HERE}")
    return f"{searched} {command(folder, f'explain {RUN}')}"


def command(folder: Path, words: str) -> str:
    """Run a command in this process; return what it prints, its white space as single blanks."""
    with chdir(folder), redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as error:
        main(shlex.split(words))
    return " ".join((out.getvalue() + error.getvalue()).split())


def shown(pattern: str, printed: str) -> str:
    """Return what matches; raises ValueError where nothing does."""
    found = re.search(pattern, printed)
    if found is None:
        raise ValueError(f"{pattern!r} is not in: {printed}")
    return found[found.lastindex or 0]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        PAGE.write_text(page(Path(work)), encoding="utf-8")
