"""Flags are what the fields that declare them say."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from precision_bisect.commandline.arguments.run_flags import run_parser, to_options
from precision_bisect.commandline.main import main
from precision_bisect.errors import ExitCode, UsageError
from precision_bisect.options import Options
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.flags import choices_of, flag_name, flags_of

MODEL = Path("model.onnx")
LIMITED = [
    (kind, each)
    for kind in (Options, EngineSettings)
    for each in fields(kind)
    if flags_of(each)
    and (flags_of(each)[0].least is not None or flags_of(each)[0].positive or choices_of(each))
]


def made(kind: Any, **values: Any) -> Any:
    """Return options, or engine settings."""
    return kind(**values) if kind is EngineSettings else kind(model=MODEL, **values)


def test_without_flags_the_defaults_stand() -> None:
    """The parser has none of its own."""
    assert Options(model=MODEL) == to_options(run_parser().parse_args(["model.onnx"]))


@pytest.mark.parametrize(("kind", "each"), LIMITED, ids=[each.name for _, each in LIMITED])
def test_python_is_refused_what_the_field_does_not_allow(kind: Any, each: Any) -> None:
    """Below the least, beyond the choices, and of another type."""
    flag = flags_of(each)[0]
    below = -1 if flag.positive or flag.least is None else flag.least - 1
    beyond = "neither" if choices_of(each) else int(below)
    with pytest.raises(UsageError) as error:
        made(kind, **{each.name: beyond})
    assert error.value.message.startswith((flag.name or flag_name(each.name), each.name))
    assert error.value.hint.startswith(("give ", "choose "))
    with pytest.raises(UsageError, match=f"{each.name} cannot be"):
        made(kind, **{each.name: object()})


@pytest.mark.parametrize(("kind", "each"), LIMITED, ids=[each.name for _, each in LIMITED])
def test_the_command_line_is_refused_the_same(
    kind: Any, each: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, with the exit code of wrong usage."""
    flag = flags_of(each)[0]
    if flag.const is not None:
        return
    name = flag.name or flag_name(each.name)
    assert ExitCode.USAGE == main(["model.onnx", f"{name}=-1"])
    assert 1 == capsys.readouterr().err.count("\n")
    assert kind in (Options, EngineSettings)


@pytest.mark.parametrize(
    "words", ["m.onnx --disk-cap", "m.onnx --trial-memory", "verify m --build-memory"]
)
@pytest.mark.parametrize("size", ["0", "0G", "0.0M", "-1G", "8", "8T"])
def test_no_size_is_refused_with_one_that_would_do(
    words: str, size: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing, less than that, and what has no unit."""
    assert ExitCode.USAGE == main([*words.split()[:-1], f"{words.split()[-1]}={size}"])
    assert (
        f"precision-bisect: '{size}' is no size; write it as 8G or 512M\n"
        == capsys.readouterr().err
    )
