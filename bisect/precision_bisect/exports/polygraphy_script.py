"""The script for `polygraphy run --trt-network-postprocess-script`: a template, filled in."""

from collections.abc import Iterable
from importlib.resources import files

from precision_bisect.options import LowName

_TEMPLATE = "polygraphy_constraints.py"
_FLAGS = 'FLAGS = ""\n'
_KEPT = "KEPT: tuple[str, ...] = ()\n"


def write_polygraphy_script(names: Iterable[str], low: LowName, *, tf32: bool = False) -> str:
    """Return a Python script that keeps the layers of these names FP32.

    Names come from the model and are written as ASCII literals. `tf32` allows TF32 in the layers
    that stay FP32, which Polygraphy, unlike trtexec, does not by default.
    """
    flags = f"--{low} --precision-constraints obey" + (" --tf32" if tf32 else "")
    literals = "".join(f"    {name!a},\n" for name in names)
    template = files(__package__).joinpath(_TEMPLATE).read_text(encoding="utf-8")
    before, _, after = template.partition(_FLAGS)
    between, _, rest = after.partition(_KEPT)
    return f'{before}FLAGS = "{flags}"\n{between}KEPT: tuple[str, ...] = (\n{literals})\n{rest}'
