"""What the user knows of layers: those with a type by order, as `--keep` and `--low-only` say.

They are no candidates, so no plan of any search can have them otherwise.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from precision_bisect.errors import UsageError
from precision_bisect.graphs.layer_patterns import layers_of
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.typed.pinning import pin_formless
from precision_bisect.layer_table import Layer, LayerName
from precision_bisect.options import Options


def with_asked(options: Options, model: Model) -> tuple[Model, list[str]]:
    """Return the model in which the layers that flags name have their type, and remarks.

    A layer without a form in that type is left as any other, which is remarked. Raises UsageError
    for patterns that name nothing, the same layer, or only such layers, and where no candidate is
    left.
    """
    if not (options.keep or options.low_only):
        return model, []
    kept = layers_of(options.keep, model.table, "--keep")
    low = layers_of(options.low_only, model.table, "--low-only")
    _refuse_both(kept & low)
    lowest, highest = options.pairs[0], options.pairs[-1]
    pinned = pin_formless(model, lowest).table
    formless = {each.name: each for each in pinned.layers if each.exclusion is not None}
    remarks = _cannot(low, formless, lowest.low)
    fp32 = {name for name, each in formless.items() if each.fixed is not None}
    forms = dict.fromkeys(low - formless.keys(), lowest.low_form)
    forms |= dict.fromkeys(kept - fp32, highest.high_form)
    table = model.table.asking(forms)
    # A ladder decides on its higher rungs what has no form on the lowest.
    decided = table.candidates if options.ladder else set(pinned.names) - forms.keys()
    if not decided:
        raise UsageError(
            f"--keep and --low-only leave no layer of {model.path} to decide on", "name fewer"
        )
    return replace(model, table=table), remarks


def _refuse_both(layers: Collection[LayerName]) -> None:
    if layers:
        more = f" and {len(layers) - 1} more" * (len(layers) > 1)
        raise UsageError(
            f"--keep and --low-only both name {min(layers)!r}{more}", "name each in one of them"
        )


def _cannot(
    low: Collection[LayerName], formless: Mapping[LayerName, Layer], kind: str
) -> list[str]:
    """Return a remark on the layers of --low-only that have no low form.

    Raises UsageError where all of them have none.
    """
    names = [name for name in formless if name in low]
    if not names:
        return []
    more = f" and {len(names) - 1} more" * (len(names) > 1)
    said = (
        f"--low-only: {names[0]}{more} cannot run in {kind.upper()}: {formless[names[0]].detail}"
    )
    if len(names) == len(low):
        raise UsageError(said, "name others")
    return [said]
