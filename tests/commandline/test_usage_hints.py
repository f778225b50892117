"""What is misspelt gets a hint that can be followed."""

from pathlib import Path

import pytest

from precision_bisect.commandline.arguments.run_flags import run_parser
from precision_bisect.commandline.commands import COMMANDS
from precision_bisect.commandline.main import main
from precision_bisect.errors import ExitCode
from precision_bisect.settings.reading import named_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["explian", "m.onnx"], "no command 'explian'; did you mean explain?"),
        (["m.onnx", "--tolerance", "1"], "--tolerance 1; did you mean --tol?"),
        (["show", "run", "--jsn"], "--jsn; did you mean --json?"),
        (["help"], "no command 'help'; did you mean --help?"),
        (
            ["find", "m.onnx"],
            "'find'; the search needs no word: precision-bisect m.onnx",
        ),
        (["--tol", "1"], "required: model; see precision-bisect --help"),
        (["compare", "a"], "required: AFTER; see precision-bisect compare --help"),
        (["m.onnx", "--cluster", "a:1", "--executor", "local"], "not allowed with argument"),
        (["m.onnx", "--fp16"], "--fp16; write --low fp16 (fp16 is the default)"),
        (["m.onnx", "--low", "FP16"], "did you mean fp16?"),
        (
            ["--onnx=m.onnx", "--half"],
            "--onnx=m.onnx --half; write the model without a flag, --low",
        ),
        (["m.onnx", "--loadInputs=x:a.bin"], "write --inputs NAME:FILE.bin"),
        (["m.onnx", "--data-loader-script", "a.py"], "write --inputs SCRIPT.py with load_data()"),
        (["m.onnx", "--shapes=x:1x3"], "write --input-shapes NAME:1x3x224x224"),
        (["m.onnx", "--trt-min-shapes", "x:[1,3]"], "write --min-shapes"),
        (["m.onnx", "--precisionConstraints=obey"], "write --typing weak, which constrains"),
        (["m.onnx", "--saveEngine=a.plan", "-o", "b"], "write --keep-engines, --out DIR"),
        (["m.onnx", "--verbose", "--best"], "write -v, --ladder int8,fp16,fp32"),
        (["m.onnx", "--noTF32", "--nodes_to_exclude", "a"], "--tf32 off, --keep"),
        (["m.onnx", "--timingCacheFile=a"], "each run folder has a timing cache"),
        (["m.onnx", "--batch-size", "8"], "write --input-shapes NAME:8x3x224x224"),
        (["m.onnx", "--check-error-stat", "mean"], "write --metric max, mean or quantile"),
        (
            ["m.onnx", "--trt-outputs", "y"],
            "leave --trt-outputs out: the outputs of",
        ),
        (["m.onnx", "--device=1", "--mode=bisect"], "write --workers gpu:N, --strategy NAME"),
        (["--onnx_path=a", "--output_path=b"], "write the model without a flag, --out DIR"),
        (["m.onnx", "--low_precision_type=bf16"], "write --low fp16 or bf16"),
        (["m.onnx", "--keep_io_types"], "keep their types but for --io-types fp16"),
        (["m.onnx", "--refit", "--useDLACore=0"], "write --trt-config-postprocess-script"),
        (["m.onnx", "--node_block_list", "a", "--op_block_list", "b"], "--keep PATTERN, --keep O"),
        (["m.onnx", "--noTF32", "--iters=9"], "--tf32 off; leave --iters out: each plan is timed"),
        (["m.onnx", "--validate_fn", "f", "--int4"], "--check SCRIPT.py:FUNCTION, --low int8 or"),
        (["m.onnx", "--model_name_or_path=a", "--dataset=b"], "a flag, --inputs PATH"),
        (["verify", "run", "--dumpLayerInfo"], "verify RUN shows the engine's layers"),
        (["m.onnx", "-v", "-q"], "-q and -v exclude each other; choose one"),
        (["show", "run", "--loadInputs=x:a.bin"], "see precision-bisect show --help"),
        (["m.onnx", "--backend", "trt"], "did you mean tensorrt?"),
        (["m.onnx", "--backend", "cpu"], "see precision-bisect --help"),
        (["m.onnx", "--steps", "2", "--feed", ""], "--feed is empty; give a value, or leave it"),
        (["m.onnx", "--tol", "0,01"], "--tol cannot read '0,01'; write --tol 0.01"),
    ],
)
def test_the_nearest_is_named(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands, flags and a decimal comma: one line each."""
    assert ExitCode.USAGE == main(arguments)
    error = capsys.readouterr().err
    assert said in error
    assert 1 == error.count("\n")


def test_paths_without_a_flag_are_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is there is taken for what `--inputs` forgot, or for more than it takes."""
    monkeypatch.chdir(tmp_path)
    for name in ("in", "more"):
        (tmp_path / name).mkdir()
    for words, said in ((["in"], "--inputs in, "), (["in", "more"], "--inputs PATH, one file,")):
        assert ExitCode.USAGE == main(["m.onnx", *words])
        assert f"give samples by {said}" in capsys.readouterr().err
    assert ExitCode.USAGE == main(["m.onnx", "out"])
    assert "--inputs" not in capsys.readouterr().err


def test_runs_are_named_where_none_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`show` and `status` say which runs the current folder holds, at most three."""
    monkeypatch.chdir(tmp_path)
    for command in (["show"], ["status"], ["show", "absent"]):
        assert ExitCode.USAGE == main(command)
        assert "no run lies in this folder" in capsys.readouterr().err
    for name in "abcd":
        (tmp_path / name).mkdir()
        (tmp_path / name / "status.json").touch()
    for command in (["show"], ["status"], ["show", "absent"]):
        assert ExitCode.USAGE == main(command)
        assert "runs in this folder: a, b, c and 1 more\n" in capsys.readouterr().err


def test_without_arguments_there_is_a_short_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """One example and the commands, in a screen of 80 columns."""
    assert ExitCode.USAGE == main([])
    lines = capsys.readouterr().err.splitlines()
    assert any("precision-bisect model.onnx --tol 1e-2" in line for line in lines)
    assert all(any(f"... {name} " in line for line in lines) for name in COMMANDS)
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("command", [[], ["curve"]])
def test_help_is_of_everyday_flags(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--help` leaves out what few need, `--help-all` has everything."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            main([*command, flag])
        shown[flag] = capsys.readouterr().out
    short, whole = shown["--help"], shown["--help-all"]
    assert "--tol T" in short and "--inputs PATH" in short and "exit codes" in short
    assert "--workspace" not in short and "--certify" not in short
    assert max(map(len, short.splitlines())) <= 80 and len(short.splitlines()) <= 45
    everyday = ("--check", "--image-size", "--target", "--keep", "--threads", "-v, ", "-q, ")
    assert all(flag in short for flag in everyday)
    assert "--workspace" in whole and "--certify" in whole and "exit codes" in whole
    assert 2 * len(short) < len(whole)


@pytest.mark.parametrize(
    ("command", "everyday"),
    [
        ("explain", "--worst --inputs --check --target --low"),
        ("verify", "--plan --backend --compute-capability --plugins --build-timeout"),
        ("export", "--plan --out --export-point --io-types --typing"),
        ("target", "--write --read --check --typing"),
    ],
)
def test_help_of_a_long_command_has_what_people_use(
    command: str,
    everyday: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What people use of a long command is not among what few need."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    short = capsys.readouterr().out
    assert all(f"{flag} " in short for flag in everyday.split())
    assert "--workspace" not in short and "--quantile" not in short and "--help-all" in short


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_fits_a_screen(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No line is broken in two at 80 columns, and nothing scrolls away."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) <= 45


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_all_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Who knows `--help-all` from the search finds it everywhere."""
    with pytest.raises(SystemExit):
        main([command, "--help-all"])
    assert f"usage: precision-bisect {command} " in capsys.readouterr().out


PATHS = [
    [command, action.option_strings[-1] if action.option_strings else action.dest]
    for command, make in (
        ("run", run_parser),
        *((name, made) for name, (made, _) in COMMANDS.items()),
    )
    for action in make()._actions
    if action.type in (Path, named_path)
]


@pytest.mark.parametrize(("command", "name"), PATHS)
def test_an_empty_path_is_refused(
    command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python would take it for the current folder."""
    named = ["m.onnx", name] if name.startswith("-") else []
    assert ExitCode.USAGE == main([command, *named, ""])
    assert "an empty path names nothing" in capsys.readouterr().err


def test_what_is_far_off_gets_no_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does a file whose name is like a command's."""
    assert ExitCode.USAGE == main(["m.onnx", "--zzz"])
    assert ExitCode.USAGE == main(["layers.onnx", "--tol", "1"])
    (tmp_path / "explian").write_text("no model")
    monkeypatch.chdir(tmp_path)
    assert ExitCode.USAGE == main(["explian", "--tol", "1"])
    assert "did you mean" not in capsys.readouterr().err
