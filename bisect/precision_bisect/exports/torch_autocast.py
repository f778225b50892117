"""Keeps modules of a PyTorch model in FP32 while the rest runs low.

Written by precision-bisect, which copies this file and fills in KEPT and LOW. Under autocast:

    with torch.autocast("cuda", LOW): keep_float32(model)(inputs)

With low weights:

    lowered(model)(inputs)

With Torch-TensorRT, for a model from torch.export:

    torch_tensorrt.compile(model, inputs, enable_autocast=True, autocast_low_precision_type=LOW,
                           autocast_excluded_nodes=EXCLUDED_NODES)
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

KEPT: tuple[str, ...] = ()
"""Modules, by PyTorch's qualified names, that compute in FP32 with all that is in them."""
LOW = torch.float16
EXCLUDED_NODES = {rf"{re.escape(name)}(\.|\Z)" for name in KEPT}
"""Torch-TensorRT matches them at the start of the name of the module that a node comes from."""


def keep_float32(model: torch.nn.Module) -> torch.nn.Module:
    """Let the modules compute in FP32 inside autocast, in place.

    Raises AttributeError where the model has no module of such a name.
    """
    for name in KEPT:
        module = model.get_submodule(name)
        module.float()
        module.forward = _in_float32(module.forward)
    return model


def lowered(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy with low weights, in which the modules have their own weights and FP32.

    What they return is low, as weights behind them are. Raises AttributeError as `keep_float32`.
    """
    low = copy.deepcopy(model).to(LOW)
    for name in KEPT:
        module = low.get_submodule(name).float()
        module.load_state_dict(model.get_submodule(name).state_dict())
        module.forward = _low_outside(_in_float32(module.forward))
    return low


def _in_float32(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(_raised, (args, kwargs))
        tensors = (
            tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)
        )
        device = next((tensor.device.type for tensor in tensors), "cpu")
        with torch.autocast(device, enabled=False):
            return forward(*args, **kwargs)

    return run


def _low_outside(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        return tree_map(_rounded, forward(*args, **kwargs))

    return run


def _raised(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype != LOW:
        return value
    return getattr(value, "in_float32", value.float())


def _rounded(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
        return value
    low: Any = value.to(LOW)
    # The next of these modules takes what LOW cannot hold.
    low.in_float32 = value
    return low
