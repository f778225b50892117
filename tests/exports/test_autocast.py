"""autocast-exclude.txt: one expression per kept layer that matches it and nothing else."""

import re
import subprocess
import tempfile
from pathlib import Path

import onnx
import pytest
from hypothesis import example, given

from effort import examples
from exports_models import SHELLS, chain, export_of, words
from precision_bisect.exports.write import write_exports
from precision_bisect.runs.runfolder import AUTOCAST, RunFolder
from trtexec_oracle import NAMES


@pytest.mark.parametrize("shell", SHELLS)
@given(names=NAMES)
@example(names=["a b", "*", "/etc/*", "-x", "层", "nul\0", "x\n", "'", '"', "\\", "$HOME"])
@examples(10)
def test_autocast_gets_each_expression_as_one_word(shell: str, names: list[str]) -> None:
    """The documented `$(cat …)` under `set -f` hands over one expression per kept layer."""
    unique = sorted({name for name in names if name})
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "model.onnx"
        onnx.save(chain([*unique, "the last"]), path)
        folder = RunFolder(Path(place))
        write_exports(folder, export_of(path, [*unique, "the last"]))
        command = "set -f; printf '%s\\n' $(cat autocast-exclude.txt)"
        ran = subprocess.run(
            [*words(shell), "-c", command], cwd=place, capture_output=True, check=True
        )
        assert (Path(place) / AUTOCAST).read_bytes() == ran.stdout
    lines = ran.stdout.decode("ascii").split()
    assert not [line for line in lines if line.startswith("-")]
    for name, line in zip([*unique, "the last"], lines, strict=True):
        assert [name] == [n for n in [*unique, "the last", f"{name}\n"] if re.match(line, n)]
