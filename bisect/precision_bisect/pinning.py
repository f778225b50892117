"""Layers that cannot run low at all: no candidates, whatever a search would like."""

from collections.abc import Mapping
from dataclasses import replace

from precision_bisect.backends.choose import MakeBackend
from precision_bisect.errors import ModelError, RefusedError
from precision_bisect.layer_table import Exclusion, LayerName
from precision_bisect.lowtypes import LOW_TYPES
from precision_bisect.model.load import Model
from precision_bisect.options import LowName
from precision_bisect.protocols import Backend
from precision_bisect.typed.rewrite import TypedWriter


def pin(model: Model, reasons: Mapping[LayerName, str]) -> Model:
    """Return the model with these layers no candidates any more, each for its reason."""
    return replace(model, table=model.table.pinned(reasons)) if reasons else model


def pin_formless(model: Model, low: LowName) -> Model:
    """Return the model without the candidates that have no form in the low type.

    A model that computes in 16-bit types already is returned as it is: only the emulator takes it.
    """
    writer = _writer(model, low)
    return pin(model, writer.not_low) if writer else model


def why_untyped(model: Model, low: LowName) -> str:
    """Return why no engine can be built of the model, "" where one can."""
    try:
        TypedWriter(model, LOW_TYPES[low])
    except RefusedError as error:
        return error.message
    return ""


def settle(make: MakeBackend, model: Model, low: LowName) -> tuple[Model, Backend]:
    """Return a backend, and the model without the candidates that it cannot run low.

    Raises ModelError where none is left.
    """
    model = pin_formless(model, low)
    backend = make(model)
    if stuck := backend.unbuildable():
        model = pin(model, stuck)
        backend = make(model)
    if not model.table.candidates:
        name, reason = next(iter(pinned_layers(model).items()))
        raise ModelError(
            f"no layer of {model.path} can run in {low}: {name}: {reason}",
            "list them with `precision-bisect layers`",
        )
    return model, backend


def pinned_layers(model: Model) -> dict[str, str]:
    """Return the layers that were pinned, each with its reason, in network order."""
    return {
        str(layer.name): layer.detail
        for layer in model.table.layers
        if layer.exclusion is Exclusion.PINNED
    }


def weights_beyond(model: Model, low: LowName) -> str:
    """Return a sentence about the weights that become infinite in the low type, or ""."""
    writer = _writer(model, low)
    beyond = [weight for weight in writer.out_of_range if weight.overflowing] if writer else []
    if not beyond:
        return ""
    worst = max(beyond, key=lambda weight: weight.largest)
    count = f"{len(beyond)} weights leave" if len(beyond) > 1 else "one weight leaves"
    return f"{count} the range of {low}, the largest is {worst.largest:.3g} in {worst.name}"


def _writer(model: Model, low: LowName) -> TypedWriter | None:
    try:
        return TypedWriter(model, LOW_TYPES[low])
    except RefusedError:
        return None
