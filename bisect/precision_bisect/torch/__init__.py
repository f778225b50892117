"""A model in PyTorch: which of its modules must stay in FP32.

    import precision_bisect.torch

    found = precision_bisect.torch.find(model, samples, tol=1e-2)
    print(found.modules)

It needs torch and onnxscript, `pip install 'precision-bisect[torch]'`, which it imports when it is
called.
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from precision_bisect.api import FindOptions, begun_now, errors_in_python, path_of
from precision_bisect.api import find as find_in_file
from precision_bisect.errors import InputError, ModelError, PluginError, SearchInterrupted
from precision_bisect.machine.workdir import workdir
from precision_bisect.runs.monitoring.events import Observer
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.runfolder import TORCH_AUTOCAST
from precision_bisect.settings.sample_options import Limits

if TYPE_CHECKING:
    import torch

Call: TypeAlias = "torch.Tensor | tuple[Any, ...] | Mapping[str, Any]"
"""What a module is called with: one tensor, positional arguments, or keyword arguments."""
MODEL, RUN = "model.onnx", "run"
"""What `find` leaves in its folder: the exported model, and the run folder."""
_NEEDED = ("torch", "onnxscript")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The answer for a module.

    `modules` are the qualified names of those to keep in FP32, empty where none has to be kept or
    no whole modules were shown to hold. `script` is the text of `torch_autocast.py`, which keeps
    them, "" without modules. `result` has all layers of the answer.
    """

    result: Result
    modules: Sequence[str]
    script: str


def find(
    module: "torch.nn.Module",
    inputs: "Call | list[Call]",
    *,
    tol: Limits = None,
    folder: str | Path | None = None,
    dynamic_shapes: Any = None,
    observer: Observer | None = None,
    progress: bool | None = None,
    **options: Unpack[FindOptions],
) -> Found:
    """Export a module by `torch.export`, and find the modules that must stay in FP32.

    `inputs` is what it is called with, a list for several samples: a tensor, a tuple of positional
    arguments, or a dict of keyword arguments. The first is exported with, and `dynamic_shapes` is
    torch.onnx.export's. `folder` keeps the exported model and the run; without it both are
    removed, and the result has no `out`. `tol`, `observer`, `progress` and the options are those
    of `precision_bisect.find`; in `max_time_s` the export counts, too. The module is exported in
    evaluation mode, and is not changed.

    Raises a PrecisionBisectError for a module that cannot be exported, and for other bad input.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        what = f"precision_bisect.torch needs {' and '.join(missing)}"
        raise PluginError(what, "pip install 'precision-bisect[torch]'")
    calls = _alike(inputs if isinstance(inputs, list) else [inputs])
    with errors_in_python(), begun_now(), workdir() as work:
        place = path_of(work if folder is None else folder, "folder")
        place.mkdir(parents=True, exist_ok=True)
        program = _export(module, calls[0], dynamic_shapes)
        program.save(place / MODEL)
        names = [str(value.name) for value in program.model.graph.inputs]
        samples = [_sample(call, names) for call in calls]
        try:
            result = find_in_file(
                place / MODEL,
                tol=tol,
                inputs=samples,
                out=place / RUN,
                observer=observer,
                progress=progress,
                **options,
            )
        except SearchInterrupted as interrupt:
            # The folder is gone once this raises.
            if folder is None and isinstance(interrupt.result, Result):
                interrupt.result = replace(interrupt.result, out=None)
            raise
        by_modules = result.by_modules
        script = place / RUN / TORCH_AUTOCAST
        return Found(
            result=result if folder is not None else replace(result, out=None),
            modules=() if by_modules is None else by_modules.names,
            script=script.read_text(encoding="utf-8") if script.is_file() else "",
        )


def _alike(calls: Sequence[Call]) -> Sequence[Call]:
    """Return the calls, keyword arguments in the order of the first one's. Raises InputError."""
    if not calls:
        raise InputError("inputs hold no sample", "give what the module is called with")
    first = calls[0]
    if not isinstance(first, Mapping):
        return calls
    if not all(isinstance(call, Mapping) and call.keys() == first.keys() for call in calls):
        raise InputError("samples have other arguments than the first", "name the same in each")
    return [{name: call[name] for name in first} for call in calls if isinstance(call, Mapping)]


def _export(
    module: "torch.nn.Module", call: Call, dynamic_shapes: Any
) -> "torch.onnx.ONNXProgram":
    """Return the module as an ONNX model. Raises ModelError."""
    import torch

    args, kwargs = _arguments(call)
    try:
        # Modes of inner modules may differ, and are not ours to change.
        module = copy.deepcopy(module).eval()
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module,
                args,
                kwargs=kwargs,
                dynamo=True,
                dynamic_shapes=dynamic_shapes,
                verbose=False,
            )
            assert program is not None
            return program
    except Exception as error:  # PyTorch raises anything: the module's own errors, too
        if _comes_of_interrupt(error):
            raise KeyboardInterrupt from error
        cause = error.__cause__ or error
        first = next(iter(str(cause).splitlines()), "")
        raise ModelError(
            f"PyTorch cannot export {type(module).__name__}: {type(cause).__name__}: {first}",
            "make torch.onnx.export(module, inputs, dynamo=True) work",
        ) from error


def _comes_of_interrupt(error: BaseException) -> bool:
    """Tell whether PyTorch fell over a Ctrl-C: it may raise something else in place of it."""
    errors: list[BaseException | None] = [error]
    for raised in errors:
        if isinstance(raised, KeyboardInterrupt):
            return True
        if raised is not None:
            errors += {raised.__cause__, raised.__context__}.difference(errors)
    return False


def _arguments(call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(call, Mapping):
        return (), dict(call)
    return (call if isinstance(call, tuple) else (call,)), {}


def _sample(call: Call, names: Sequence[str]) -> Mapping[str, Any]:
    """Return the arrays of a call by the exported inputs' names. Raises InputError."""
    import torch
    from torch.utils._pytree import tree_leaves

    leaves = tree_leaves(_arguments(call))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if len(tensors) != len(names):
        raise InputError(
            f"a sample has {len(tensors)} tensors, and the exported model {len(names)} inputs",
            "call the module alike in each sample, without arguments that it does not use",
        )
    arrays = (tensor.detach().cpu().numpy() for tensor in tensors)
    return dict(zip(names, arrays, strict=True))
