#!/bin/sh
# Guess: on a GPU the ways of torch to add many values at one index accumulate alike, in FP32 as torch.sum does.
# Seen (torch 2.11.0, H100): of 8,000 times 0.4, index_add_, scatter_add_ and scatter_reduce_ give 1024 in FP16 and 128 in
# BF16, where another 0.4 no longer counts; index_put_(accumulate=True) gives 3200.
# Needs a GPU. Exits with 1 where that has changed.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet numpy==2.4.6 torch==2.11.0
"$place/venv/bin/python" - <<'PYTHON'
import sys

import torch

print("torch", torch.__version__, torch.cuda.get_device_name())
COUNT, VALUE = 8000, 0.4
index = torch.zeros(COUNT, dtype=torch.long, device="cuda")


def sums(kind: torch.dtype) -> dict[str, float]:
    """Return what each way makes of equal values that go to one index."""
    values = torch.full((COUNT,), VALUE, dtype=kind, device="cuda")
    zero = torch.zeros(1, dtype=kind, device="cuda")
    return {
        "sum": values.sum().item(),
        "index_put_": zero.clone().index_put_((index,), values, accumulate=True).item(),
        "index_add_": zero.clone().index_add_(0, index, values).item(),
        "scatter_add_": zero.clone().scatter_add_(0, index, values).item(),
        "scatter_reduce_": zero.clone().scatter_reduce_(0, index, values, "sum").item(),
    }


alike = True
for kind, stuck in ((torch.float16, 1024.0), (torch.bfloat16, 128.0)):
    found = sums(kind)
    print(kind, found)
    exact = COUNT * torch.tensor(VALUE, dtype=kind).item()
    alike &= all(abs(found[name] - exact) < exact / 200 for name in ("sum", "index_put_"))
    alike &= {found[name] for name in found if name.endswith(("add_", "reduce_"))} == {stuck}
sys.exit(not alike)
PYTHON
