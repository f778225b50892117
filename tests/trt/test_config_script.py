"""The user's own script that changes the builder's configuration."""

from pathlib import Path

import pytest

from exports_models import export_of
from models import normal, parse, save
from precision_bisect.backends.tensorrt.build import Recipe, build
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.commandline.arguments.run_flags import run_parser, to_options
from precision_bisect.errors import UsageError
from precision_bisect.exports.polygraphy_command import polygraphy_command
from precision_bisect.exports.write import write_exports
from precision_bisect.runs.runfolder import RunFolder
from precision_bisect.settings.engine_settings import EngineSettings

BODY = "(float[2,4] x) => (float[2,4] y) { y = Tanh(x) }"
ATOL = {"metric": "elementwise", "atol": {"": 0.1}, "rtol": {"": 0.1}}
NAMES_ONLY = """\
import tensorrt_rtx as trt

def postprocess_config(builder, network, config):
    print("this goes to stderr")
    config.profiling_verbosity = trt.ProfilingVerbosity.LAYER_NAMES_ONLY

def broken(builder, network, config):
    config.set_flag("no flag")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Return a script with a function that works, and one that fails."""
    path = tmp_path / "own flags.py"
    path.write_text(NAMES_ONLY)
    return path


def settings(script: Path, function: str = "") -> EngineSettings:
    """Return settings that name the script."""
    return EngineSettings(compute_capability="8.6", config_script=f"{script}{function}")


def test_the_script_has_the_last_word(
    rtx: Flavour, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It asks for less detail than we do, and gets it; what it prints is no output."""
    source = save(parse(BODY), tmp_path)
    plain = Recipe(settings=EngineSettings(compute_capability="8.6"), ranges={})
    assert "LayerType: " in build(rtx, source, plain).layers
    built = build(rtx, source, Recipe(settings=settings(script), ranges={}))
    assert "LayerType: " not in built.layers
    out, err = capsys.readouterr()
    assert (out, "this goes to stderr" in err) == ("", True)


@pytest.mark.parametrize(
    ("function", "said"),
    [(":broken", "own flags.py: broken() failed: "), (":other", "has no function other()")],
)
def test_a_script_that_fails_is_one_line(
    rtx: Flavour, script: Path, tmp_path: Path, function: str, said: str
) -> None:
    """It would fail in every build: the run ends."""
    source = save(parse(BODY), tmp_path)
    with pytest.raises(UsageError) as caught:
        build(rtx, source, Recipe(settings=settings(script, function), ranges={}))
    assert said in caught.value.one_line()
    assert "\n" not in caught.value.one_line()


def test_the_flag_takes_a_path_that_holds_in_any_folder(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a function or without; a file that is missing is one line."""
    monkeypatch.chdir(tmp_path)
    flag, model = "--trt-config-postprocess-script", str(save(parse(BODY), tmp_path))

    def told(given: str) -> str | None:
        return to_options(run_parser().parse_args([model, flag, given])).engine.config_script

    assert f"{script}:postprocess_config" == told(script.name)
    assert f"{script}:broken" == told(f"{script.name}:broken")
    with pytest.raises(UsageError, match="there is no file"):
        told("missing.py")


def test_the_exported_commands_tell_of_it(script: Path, tmp_path: Path) -> None:
    """Polygraphy runs it, too; of trtexec's command it is said that it does not."""
    path = save(parse(BODY), tmp_path)
    export = export_of(path, [], settings=settings(script))
    folder = RunFolder(tmp_path)
    write_exports(folder, export)
    assert "trtexec runs none" in (tmp_path / "trtexec.sh").read_text()
    command = polygraphy_command(export.model, settings(script), ATOL, [{"x": normal(2, 4)}])
    assert "--trt-config-postprocess-script" in command
