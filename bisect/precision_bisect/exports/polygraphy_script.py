"""The script for `polygraphy run --trt-network-postprocess-script`: a template, filled in."""

from collections.abc import Iterable, Mapping
from importlib.resources import files

from precision_bisect.options import PrecisionName

_TEMPLATE = "polygraphy_constraints.py"
_FLAGS = 'FLAGS = ""\n'
_KEPT = "KEPT: dict[str, str] = {}\n"


def write_polygraphy_script(
    kept: Mapping[str, str], below: Iterable[PrecisionName], *, tf32: bool = False
) -> str:
    """Return a Python script that keeps the layers of these names in the precision of each.

    `below` are the precisions that the others may have. Names come from the model and are written
    as ASCII literals. `tf32` allows TF32 in the layers that stay FP32, which Polygraphy, unlike
    trtexec, does not by default.
    """
    flags = " ".join(f"--{name}" for name in below) + " --precision-constraints obey"
    flags += " --tf32" if tf32 else ""
    literals = "".join(f'    {name!a}: "{kind.upper()}",\n' for name, kind in kept.items())
    template = files(__package__).joinpath(_TEMPLATE).read_text(encoding="utf-8")
    before, _, after = template.partition(_FLAGS)
    between, _, rest = after.partition(_KEPT)
    return f'{before}FLAGS = "{flags}"\n{between}KEPT: dict[str, str] = {{\n{literals}}}\n{rest}'
