"""Engines of TensorRT-RTX, built for tests without a GPU, and the verdicts on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from models import keeping, normal, parse, save, with_weights
from precision_bisect.backends.inspection.engine_layers import EngineLayer, parse_layers
from precision_bisect.backends.inspection.honoured import judge_layers
from precision_bisect.backends.tensorrt.build import Recipe, build
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.precisions import LowName, Pair
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.trial import Honour, LayerHonour


@dataclass(frozen=True, kw_only=True)
class Target:
    """What to build for: the low type, the GPU, and whether lone products are guarded."""

    low: LowName = "fp16"
    capability: str = "8.6"
    guard: bool = True


@dataclass(frozen=True, kw_only=True)
class Inspected:
    """A built engine: what the builder said of its layers, its bytes, and the verdicts."""

    layers: Sequence[EngineLayer]
    engine: bytes
    judged: Sequence[LayerHonour]

    @property
    def honours(self) -> dict[str, str]:
        """The verdicts as words, by layer."""
        return {entry.layer: entry.honoured.value for entry in self.judged}

    def evidence(self, layer: str) -> str:
        """Return the evidence for one layer."""
        return next(entry.evidence for entry in self.judged if entry.layer == layer)


def inspect(
    rtx: Flavour, model: Model, kept: Sequence[str], folder: Path, target: Target
) -> Inspected:
    """Build the plan that keeps these layers, and judge it."""
    pair, plan = Pair(low=target.low, high="fp32"), keeping(model, *kept)
    typed = TypedWriter(model, pair).write(plan, target.guard)
    save_typed(typed, folder / "typed.onnx")
    settings = EngineSettings(compute_capability=target.capability)
    built = build(rtx, folder / "typed.onnx", Recipe(settings=settings, ranges={}))
    layers = parse_layers(built.layers)
    judged = judge_layers(model, plan, typed, layers, pair)
    return Inspected(layers=layers, engine=built.engine, judged=judged)


def load(body: str, folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> Model:
    """Return the model of this text with seeded weights of these shapes."""
    weights = {name: normal(*shape) for name, shape in shapes.items()}
    return load_model(save(with_weights(parse(body), weights), folder))


HONOURED, DEMOTED, UNSEEN = (honour.value for honour in Honour)
