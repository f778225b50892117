#!/bin/sh
# Guess: numpy's mean and standard deviation of bfloat16 arrays accumulate in FP32, as those of float16 do.
# Seen (numpy 2.4.6, ml_dtypes 0.6.0): the mean of 1,000 ones is 0.256 and of 100,000 ones 0.0026, since the sum stops at
# 256. In float16 both are 1. A dot product of bfloat16 arrays is right. So are errors that are averaged after an
# astype(float32).
# Exits with 1 where that has changed.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet numpy==2.4.6 ml_dtypes==0.6.0
"$place/venv/bin/python" - <<'PYTHON'
import sys

import ml_dtypes
import numpy as np

print("numpy", np.__version__, "ml_dtypes", ml_dtypes.__version__)
found = {}
for dtype in (np.float16, ml_dtypes.bfloat16):
    for count in (1_000, 100_000):
        ones = np.ones(count, dtype)
        found[np.dtype(dtype).name, count] = float(np.mean(ones))
        wide = float(np.mean(ones.astype(np.float32)))
        print(np.dtype(dtype).name, count, "mean", float(np.mean(ones)), "in float32", wide)
        if count == 1_000:
            print("   dot", float(np.dot(ones, ones)))
            assert float(np.dot(ones, ones)) == 1000
half = {found["float16", count] for count in (1_000, 100_000)}
low = [found["bfloat16", count] for count in (1_000, 100_000)]
sys.exit(half != {1.0} or not (0.25 < low[0] < 0.26 and low[1] < 0.003))
PYTHON
