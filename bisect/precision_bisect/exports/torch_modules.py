"""The script that keeps modules in FP32 in PyTorch and Torch-TensorRT."""

from precision_bisect.exports.export import Export, NotWritable
from precision_bisect.exports.one_file import one_file
from precision_bisect.runs.runfolder import TORCH_AUTOCAST

_KEPT = "KEPT: tuple[str, ...] = ()\n"
_LOW = "LOW = torch.float16\n"
_TYPES = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}


def torch_autocast(export: Export) -> str:
    """Return the script. Raises NotWritable where no modules were judged, and for other types.

    It is of the answer's modules, whatever plan the files hold: PyTorch runs none of them.
    """
    pair = export.pair
    if pair.low not in _TYPES or pair.high != "fp32":
        raise NotWritable(f"PyTorch's autocast has no {pair.low} beside {pair.high}")
    if not export.modules:
        if not export.kept:
            raise NotWritable("no layer is kept")
        names = "the model has no names of PyTorch's modules"
        judged = "no whole modules were judged to hold"
        raise NotWritable(judged if export.model.pytorch else names)
    # Names come from the model: `ascii` quotes whatever they hold.
    return one_file(TORCH_AUTOCAST, {_KEPT: ascii(tuple(export.modules)), _LOW: _TYPES[pair.low]})
