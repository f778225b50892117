"""A comparator made again from a result judges as the one that judged the run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precision_bisect.errors import PrecisionBisectError
from precision_bisect.exports.finished import Finished
from precision_bisect.judging.comparators.choose_comparator import choose_comparator
from precision_bisect.options import Options
from precision_bisect.pipeline.on_target.exchange import comparator_of
from precision_bisect.precisions import Pair
from precision_bisect.runs import plain_json
from precision_bisect.runs.results.endings import Status

OUTPUTS = ("scores", "it's, $x", "ids")
SCRIPT = """
def worst(outputs, reference):
    return max(float(abs(o["scores"] - r["scores"]).max()) for o, r in zip(outputs, reference))
"""
ASKED: list[dict[str, Any]] = [
    {},
    {"tol": 0.02},
    {"tol": {"scores": 0.5, "it's, $x": 1e-3, "ids": 0.25}},
    {"atol": 0.01},
    {"rtol": 0.01, "metric": "mean"},
    {"tol": 0.1, "metric": "quantile", "quantile": 0.5},
    {"tol": 0.003, "metric": "cosine"},
    {"tol": 20.0, "metric": "psnr"},
    {"tol": 0.01, "check": "embeddings:scores"},
    {"tol": 0.01, "check": "script"},
]


def finished(comparator: object) -> Finished:
    """Return a finished run of which nothing is known but what judged it."""
    return Finished(
        kept=(),
        fixed={},
        asked={},
        pinned={},
        pair=Pair(low="fp16", high="fp32"),
        status=Status.FOUND,
        shapes={},
        diagnosis=(),
        fingerprint={"comparator": comparator},
        path=Path("run/result.json"),
    )


@pytest.mark.parametrize("asked", ASKED)
def test_it_is_made_again(asked: dict[str, Any], tmp_path: Path) -> None:
    """Settings and verdicts are the same, after a way through JSON."""
    check = asked.get("check")
    if check == "script":
        (tmp_path / "judge.py").write_text(SCRIPT)
        check = f"{tmp_path / 'judge.py'}:worst"
    options = Options(model=Path("m.onnx"), **{**asked, "check": check})
    made = choose_comparator(options, OUTPUTS, {"ids"})
    told = plain_json.parse(plain_json.dumps(made.settings()))
    again = comparator_of(finished(told), check if "judge.py" in str(check) else None)
    assert made.settings() == again.settings()
    random = np.random.default_rng(0)
    reference: list[dict[str, Any]] = [
        {
            "scores": random.normal(size=(2, 8)).astype(np.float32),
            "it's, $x": random.normal(size=(3,)).astype(np.float32),
            "ids": random.integers(0, 9, (8,)),
        }
        for _ in range(2)
    ]
    for scale in (0.0, 1e-4, 3e-3, 0.3):
        outputs = [
            {k: v + (scale if v.dtype.kind == "f" else 0) for k, v in each.items()}
            for each in reference
        ]
        assert made.judge(outputs, reference) == again.judge(outputs, reference)


@pytest.mark.parametrize(
    ("told", "check", "said"),
    [
        (None, None, "is damaged"),
        ({"metric": 3}, None, "is damaged"),
        ({"atol": {"y": "much"}, "metric": "elementwise"}, None, "is damaged"),
        ({}, None, "plug-in"),
        ({"metric": "of-a-plug-in"}, None, "plug-in"),
        ({"check": "a.py:f", "script": "0" * 64, "tolerance": 1.0}, None, "give it by --check"),
        ({"check": "a.py:f", "script": "0" * 64, "tolerance": 1.0}, "ssim", "give it by --check"),
        ({"check": "a.py:f", "script": "0" * 64, "tolerance": 1.0}, "other", "is not the script"),
        ({"metric": "elementwise", "atol": {"y": 1.0}}, "other", "leave --check out"),
    ],
)
def test_what_cannot_be_made_is_said(
    told: object, check: str | None, said: str, tmp_path: Path
) -> None:
    """One line, whatever a result tells; a script that has changed judges nothing."""
    if check == "other":
        (tmp_path / "a.py").write_text("def f(outputs, reference):\n    return 0.0\n")
        check = f"{tmp_path / 'a.py'}:f"
    with pytest.raises(PrecisionBisectError) as error:
        comparator_of(finished(told), check)
    assert said in error.value.one_line()
