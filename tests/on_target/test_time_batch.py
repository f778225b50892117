"""`target` with `--time-batch`: the folder has another batch to time, the verdict its times."""

from pathlib import Path

import numpy as np
import pytest

from fake_board import judge, searched, tool
from models import parse, save
from precision_bisect.commandline.main import main
from precision_bisect.pipeline.on_target.target_script import SCRIPT
from precision_bisect.runs.results.on_target import OnTarget
from precision_bisect.runs.runfolder import TARGET
from precision_bisect.runs.typed_json import read_or_none


def test_another_batch_is_timed_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Engines take it, one run more times it; a batch that the model fixes is refused."""
    body = "{ t = Exp(x) u = Mul(t, t) y = Log(u) }"
    samples = [{"x": np.full((1, 8), 5.0 + n, np.float32)} for n in range(2)]
    for size in ("n", "1"):
        (tmp_path / size).mkdir()
        model = parse(f"(float[{size},8] x) => (float[{size},8] y) {body}", opset=17, ir=9)
        searched(tmp_path / size, save(model, tmp_path / size), *samples)
    run, folder, asked = tmp_path / "n/run", tmp_path / "board", ["--time-batch", "5"]
    assert 0 == main(["target", str(run), "--write", str(folder), *asked])
    script = (folder / SCRIPT).read_text()
    assert "--minShapes=x:1x8 --optShapes=x:5x8 --maxShapes=x:5x8" in script
    batch = np.fromfile(folder / "inputs/batch-0.bin", "<f4").reshape(5, 8)
    assert [5.0, 6.0, 5.0, 6.0, 5.0] == batch[:, 0].tolist()
    assert 0 == judge(folder, tool(tmp_path / "bin")).returncode
    capsys.readouterr()
    assert 0 == main(["target", str(run), "--read", str(folder), *asked])
    assert " ms at batch 5 " in capsys.readouterr().out
    on_target = read_or_none(OnTarget, run / TARGET)
    assert on_target is not None
    assert {5} == {point.latency_batch for point in on_target.points}
    fixed = ["target", str(tmp_path / "1/run"), "--write", str(tmp_path / "other")]
    assert 2 == main([*fixed, *asked])
    assert "fixes the batch of 'x' to 1" in capsys.readouterr().err
