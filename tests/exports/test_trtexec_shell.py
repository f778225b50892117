"""trtexec.sh hands names and paths on unchanged, under each shell, whatever is in them."""

import os
import subprocess
from pathlib import Path

import onnx
import pytest

from exports_models import SHELLS, chain, export_of, run_script, words
from precision_bisect.exports.write import write_exports
from precision_bisect.runs.runfolder import MIXED_MODEL, TRTEXEC, RunFolder

SHELL = SHELLS[0]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "name",
    [
        "$(touch pwned)",
        "`touch pwned`",
        '"; touch pwned; "',
        "-rf",
        "--onnx=/etc/passwd",
        "a b  c",
        " lead",
        "trail ",
        "\\",
        "\\n",
        "*",
        "?[a-z]",
        "~",
        "#x",
        "$HOME ${HOME}",
        "!!",
        "&|;<>()",
        "层",
    ],
)
def test_names_reach_trtexec_as_they_are(shell: str, name: str, tmp_path: Path) -> None:
    """Whatever a name means to a shell, the tool gets it unchanged, and nothing else happens."""
    onnx.save(chain([name]), tmp_path / "model.onnx")
    folder = RunFolder(tmp_path / "run")
    write_exports(folder, export_of(tmp_path / "model.onnx", [name]))
    ran = run_script(folder.path, "weak", shell)
    expected = [
        "trtexec",
        f"--onnx={folder.path}/../model.onnx",
        "--fp16",
        "--precisionConstraints=obey",
        f"--layerPrecisions={name}:fp32",
        f"--layerOutputTypes={name}:fp32",
        "--noTF32",
        f"--saveEngine={folder.path}/trtexec.engine",
    ]
    assert (expected, "") == (ran.arguments, ran.said)
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", ["a,b", "it's", "nul\0", "line\nbreak", "tab\t"])
def test_a_name_that_trtexec_cannot_read_stops_weak_only(
    shell: str, name: str, tmp_path: Path
) -> None:
    """The weak command says why in one line and fails; the strong one works all the same."""
    onnx.save(chain([name, "other"]), tmp_path / "model.onnx")
    folder = RunFolder(tmp_path / "run")
    write_exports(folder, export_of(tmp_path / "model.onnx", [name]))
    weak, strong = (run_script(folder.path, mode, shell) for mode in ("weak", "strong11"))
    assert (1, []) == (weak.code, weak.arguments)
    assert weak.said.startswith("no command by layer names: ")
    assert 1 == weak.said.count("\n")
    assert (0, "trtexec") == (strong.code, strong.arguments[0])


@pytest.mark.parametrize("mode", ["", "strong", "--help"])
def test_another_mode_gets_the_usage(mode: str, tmp_path: Path) -> None:
    """A mode that there is none of ends with exit code 2 and the modes that there are."""
    onnx.save(chain(["a"]), tmp_path / "model.onnx")
    write_exports(RunFolder(tmp_path), export_of(tmp_path / "model.onnx", ["a"]))
    ran = run_script(tmp_path, mode, SHELL)
    assert (2, []) == (ran.code, ran.arguments)
    assert "strong10|strong11|rtx|weak" in ran.said
    bare = subprocess.run([SHELL, tmp_path / TRTEXEC], capture_output=True)
    assert 2 == bare.returncode


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "name", ["a b.onnx", "it's.onnx", "$HOME.onnx", "-x.onnx", "a\nb.onnx", "層=,.onnx"]
)
def test_the_model_is_found_whatever_its_path(shell: str, name: str, tmp_path: Path) -> None:
    """Near the script the path is relative, so that both can move; far away it is absolute."""
    home = tmp_path / "$(x) home"
    home.mkdir()
    onnx.save(chain(["a"]), home / name)
    for place in (home / "run", tmp_path / "far" / "away" / "run"):
        write_exports(RunFolder(place), export_of(home / name, ["a"]))
        ran = run_script(place, "weak", shell)
        found = Path(ran.arguments[1].removeprefix("--onnx="))
        assert (home / name).resolve() == found.resolve()
        assert (".." in found.parts) == (place.parent == home)


def test_a_path_that_is_no_unicode_is_kept(tmp_path: Path) -> None:
    """File names are bytes; the script has the same ones."""
    path = tmp_path / os.fsdecode(b"m\xff.onnx")
    onnx.save(chain(["a"]), path)
    write_exports(RunFolder(tmp_path / "run"), export_of(path, ["a"]))
    assert b"m\xff.onnx" in (tmp_path / "run" / TRTEXEC).read_bytes()


def test_a_model_elsewhere_can_be_named(tmp_path: Path) -> None:
    """Weak says where it looked for the model, and takes another path from the environment."""
    onnx.save(chain(["a"]), tmp_path / "model.onnx")
    write_exports(RunFolder(tmp_path), export_of(tmp_path / "model.onnx", ["a"]))
    (tmp_path / "model.onnx").rename(tmp_path / "moved.onnx")
    command = [SHELL, str(tmp_path / TRTEXEC), "weak"]
    lost = subprocess.run(command, capture_output=True, text=True)
    assert (1, f"no file {tmp_path}/model.onnx; say ONNX_MODEL=/path/to/model.onnx\n") == (
        lost.returncode,
        lost.stderr,
    )
    told = {**os.environ, "ONNX_MODEL": f"{tmp_path}/moved.onnx", "TRTEXEC": "echo"}
    found = subprocess.run(command, capture_output=True, text=True, env=told)
    assert found.stdout.startswith(f"--onnx={tmp_path}/moved.onnx --fp16 ")


def test_the_script_works_from_its_own_folder(tmp_path: Path) -> None:
    """Called by its bare name it finds what lies beside it."""
    onnx.save(chain(["a"]), tmp_path / "model.onnx")
    write_exports(RunFolder(tmp_path), export_of(tmp_path / "model.onnx", ["a"]))
    ran = subprocess.run(
        [SHELL, TRTEXEC, "rtx"],
        cwd=tmp_path,
        env={**os.environ, "TRTEXEC": "echo"},
        capture_output=True,
        text=True,
    )
    assert f"--onnx=./{MIXED_MODEL} --noTF32 --saveEngine=./trtexec.engine\n" == ran.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_a_tool_that_is_not_found_is_one_line(shell: str, tmp_path: Path) -> None:
    """It says how to name trtexec, which TensorRT's packages on the index do not bring."""
    onnx.save(chain(["a"]), tmp_path / "model.onnx")
    write_exports(RunFolder(tmp_path), export_of(tmp_path / "model.onnx", ["a"]))
    command = [*words(shell), str(tmp_path / TRTEXEC), "rtx"]
    for tool in ("", "/no/such/tool"):
        told = {**os.environ, "TRTEXEC": tool}
        ran = subprocess.run(command, capture_output=True, text=True, env=told)
        assert (1, "") == (ran.returncode, ran.stdout)
        assert ran.stderr.startswith(f"no {tool or 'tensorrt_rtx'}; say TRTEXEC=/path/to/tensor")
        assert 1 == ran.stderr.count("\n")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_engine_is_saved_where_the_user_says(shell: str, tmp_path: Path) -> None:
    """trtexec refuses a flag that is given twice, so ours is left out then."""
    onnx.save(chain(["a"]), tmp_path / "model.onnx")
    write_exports(RunFolder(tmp_path), export_of(tmp_path / "model.onnx", ["a"]))
    ran = run_script(tmp_path, "strong11", shell, "--verbose", "--saveEngine=a b.engine")
    assert ["--verbose", "--saveEngine=a b.engine"] == ran.arguments[-2:]
    assert 1 == sum(flag.startswith("--saveEngine=") for flag in ran.arguments)
