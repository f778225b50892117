"""Files may be read by whom the umask lets, whoever writes them and however they are renamed."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tiny
from effort import nightly
from precision_bisect.commandline.main import main
from precision_bisect.execution.process_evaluator import Logs
from precision_bisect.machine.plain_files import whole
from precision_bisect.plan import Plan
from precision_bisect.trial import Outcome, Phase, Proposal, TrialStatus


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Set the umask inside the block."""
    former = os.umask(mask)
    try:
        yield
    finally:
        os.umask(former)


def modes(folder: Path) -> dict[str, int]:
    """Return the permissions of everything in a folder, itself included."""
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode)
        for path in (folder, *folder.rglob("*"))
    }


def wanted(folder: Path, mask: int) -> dict[str, int]:
    """Return what the umask makes of them."""
    return {
        str(path.relative_to(folder)): (0o777 if path.is_dir() else 0o666) & ~mask
        for path in (folder, *folder.rglob("*"))
    }


@pytest.mark.parametrize("mask", [0o027, *nightly(0o022, 0o077)])
def test_every_file_of_a_run_obeys(mask: int, tmp_path: Path) -> None:
    """Samples, golden outputs, ledger, exports, logs, report, and what other commands write."""
    model = tiny.write_with_samples(tmp_path)
    out = tmp_path / "made"
    (tmp_path / "jobs.toml").write_text(
        '[[job]]\nmodel = "tiny.onnx"\ninputs = "inputs.npz"\nthreads = 1\ncopies = 2\n'
    )
    with umask(mask):
        out.mkdir()
        run = str(out / "run")
        inputs = ["--inputs", str(tmp_path / "inputs.npz"), "--threads", "1", "--copies", "2"]
        assert 0 == main([str(model), *inputs, "--out", run, "--isolate", "always"])
        asked = ["export", str(model), "--plan", run]
        assert 0 == main([*asked, "--out", str(out / "deploy")])
        assert 0 == main([*asked, "--export-point", "culprits"])
        assert 0 == main(["report", run, "--out", str(out / "page.html")])
        assert 0 == main(["doctor", run, "--bundle", str(out / "bundle.tgz")])
        assert 0 == main(["batch", str(tmp_path / "jobs.toml"), "--out", str(out / "batch")])
        assert 0 == main([str(model), *inputs, "--ladder", "bf16,fp32", "--out", str(out / "l")])
        (tmp_path / "said").write_text("killed")
        proposal = Proposal(plan=Plan.of(()), phase=Phase.SEARCH)
        Logs(out / "run" / "logs").keep(
            tmp_path / "said", proposal, Outcome(status=TrialStatus.CRASHED)
        )
    assert wanted(out, mask) == modes(out)
    assert {"run/golden_inputs.json", "run/golden_outputs.json", "run/ledger.sqlite"} <= set(
        modes(out)
    )


def test_a_half_file_obeys_too(tmp_path: Path) -> None:
    """While it is written, before it takes its name, nobody else can read it either."""
    with umask(0o077), whole(tmp_path / "a.json") as stream:
        stream.write(b"half")
        (half,) = tmp_path.iterdir()
        assert 0o600 == stat.S_IMODE(half.stat().st_mode)
    assert [("a.json", 0o600)] == [
        (path.name, stat.S_IMODE(path.stat().st_mode)) for path in tmp_path.iterdir()
    ]
