"""Libraries of plugins and of operators: looked at early, loaded where engines are built."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from exports_models import SHELLS, export_of, run_script
from models import load_text, normal, parse, save
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.tensorrt_backend import TensorRTBackend
from precision_bisect.commandline.arguments.run_flags import run_parser, to_options
from precision_bisect.errors import PluginError, UsageError
from precision_bisect.exports.polygraphy_command import polygraphy_command
from precision_bisect.exports.write import write_exports
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.runs.runfolder import RunFolder
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.reading import digests

BODY = "(float[2,4] x) => (float[2,4] y) { y = Tanh(x) }"
ATOL = {"metric": "elementwise", "atol": {"": 0.1}, "rtol": {"": 0.1}}


def compiled(folder: Path, source: str, *flags: str) -> Path:
    """Return what the compiler makes of a source: a library, unless flags say otherwise."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    (folder / "source.c").write_text(source)
    path = folder / "plugins 1.so"
    command = [compiler, *(flags or ("-shared", "-fPIC")), str(folder / "source.c")]
    subprocess.run([*command, "-o", str(path)], check=True)
    return path


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Return a library that leaves a file beside itself when it is loaded."""
    mark = tmp_path / "loaded"
    return compiled(
        tmp_path,
        "#include <stdio.h>\n__attribute__((constructor)) static void begin(void)"
        f' {{ fclose(fopen("{mark}", "w")); }}',
    )


def test_plugins_are_loaded_before_the_first_build(
    rtx: Flavour, library: Path, tmp_path: Path
) -> None:
    """The backend loads them as it is made, so that its parser and its runtime have them."""
    settings = EngineSettings(compute_capability="8.6", plugins=(library,))
    model = load_text(BODY, tmp_path)
    writer = TypedWriter(model, Pair(low="fp16", high="fp32"))
    assert not (tmp_path / "loaded").exists()
    backend = TensorRTBackend(writer, settings, rtx, {}, tmp_path / "work")
    assert (tmp_path / "loaded").exists()
    with backend.build(Plan.of([0])) as engine:
        assert 1 == len(engine.evidence().honours)


def test_a_library_that_does_not_load_is_one_line(rtx: Flavour, tmp_path: Path) -> None:
    """What the loader misses is said, with what the library has to be built for."""
    path = compiled(tmp_path, "void absent(void); void *held(void) { absent(); return 0; }")
    settings = EngineSettings(compute_capability="8.6", plugins=(path,))
    writer = TypedWriter(load_text(BODY, tmp_path), Pair(low="fp16", high="fp32"))
    with pytest.raises(PluginError) as caught:
        TensorRTBackend(writer, settings, rtx, {}, tmp_path / "work")
    said = caught.value.one_line()
    assert said.startswith(f"--plugins {path} does not load: ")
    assert "undefined symbol: absent; it must be built for tensorrt-rtx" in said


@pytest.mark.parametrize("flag", ["--plugins", "--ort-custom-ops"])
def test_what_is_no_library_is_refused_before_any_work(flag: str, tmp_path: Path) -> None:
    """A missing file, a text, an object that is not linked, and a pipe are one line each."""
    text, missing = tmp_path / "text.so", tmp_path / "missing.so"
    text.write_text("an index page")
    bare = compiled(tmp_path, "int held;", "-c")
    pipe = tmp_path / "pipe.so"
    os.mkfifo(pipe)
    for path, said in (
        (missing, f"{flag} cannot read {missing}: No such file or directory; check the path"),
        (text, f"{flag} {text} is no shared library; give the .so, .dll or .dylib"),
        (bare, f"{flag} {bare} is no shared library; give the .so, .dll or .dylib"),
        (pipe, f"{flag} cannot read {pipe}: it is no plain file; check the path"),
    ):
        with pytest.raises(UsageError) as caught:
            to_options(run_parser().parse_args(["model.onnx", flag, str(path)]))
        assert said == caught.value.one_line()


def test_libraries_are_named_by_paths_that_hold_anywhere(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Child processes and scripts find them from other folders; one that is given twice is one."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(library, "b.so")
    flags = ["--plugins", library.name, "--plugins", "b.so", "--plugins", library.name]
    asked = to_options(run_parser().parse_args(["model.onnx", *flags, "--ort-custom-ops", "b.so"]))
    assert (library, tmp_path / "b.so") == asked.engine.plugins
    assert (tmp_path / "b.so",) == asked.engine.ort_custom_ops


@pytest.mark.parametrize("mode", ["strong10", "strong11", "weak", "rtx"])
def test_exported_commands_load_the_plugins(mode: str, library: Path, tmp_path: Path) -> None:
    """trtexec is told of each library, and so is Polygraphy; TensorRT-RTX's tool knows no flag."""
    settings = EngineSettings(plugins=(library, library))
    export = export_of(save(parse(BODY), tmp_path), [], settings)
    write_exports(RunFolder(tmp_path / "run"), export)
    ran = run_script(tmp_path / "run", mode, SHELLS[0])
    given = [flag for flag in ran.arguments if flag.startswith("--staticPlugins=")]
    assert given == [f"--staticPlugins={library}"] * (0 if mode == "rtx" else 2)
    command = shlex.split(polygraphy_command(export.model, settings, ATOL, [{"x": normal(2, 4)}]))
    place = command.index("--plugins")
    assert [str(library)] * 2 == command[place + 1 : place + 3]


def test_verdicts_depend_on_what_a_library_holds(library: Path) -> None:
    """A run is resumed with another build of a library as little as with another TensorRT."""
    before = digests([library], "plugins of")
    library.write_bytes(library.read_bytes() + b"\0")
    assert ["plugins of plugins 1.so, 1"] == list(before)
    assert before != digests([library], "plugins of")
