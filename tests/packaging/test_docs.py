"""What the documents say is what the code does."""

import re
from pathlib import Path

import pytest

from precision_bisect.arguments import run_parser
from precision_bisect.plugins import STRATEGIES, installed
from precision_bisect.result import KEYS

REPO = Path(__file__).parents[2]
README = (REPO / "README.md").read_text(encoding="utf-8")


def test_readme_names_only_flags_that_exist() -> None:
    """Every --flag of precision-bisect that README mentions is known to the parser."""
    ours = {flag for action in run_parser()._actions for flag in action.option_strings}
    foreign = {
        "--onnx",
        "--fp16",
        "--layerPrecisions",
        "--precisionConstraints",
        "--group",
        "--upgrade",
        "--save-inputs",
    }
    mentioned = set(re.findall(r"(?<![\w-])--[A-Za-z][\w-]*", README))
    assert set() == mentioned - ours - foreign


@pytest.mark.parametrize("name", sorted(installed(STRATEGIES)))
def test_readme_names_every_strategy(name: str) -> None:
    """README's table of strategies is complete."""
    assert f"`{name}`" in README


def test_result_keys_are_documented() -> None:
    """docs/result.md has one entry per key of result.json, in order."""
    text = (REPO / "docs" / "result.md").read_text(encoding="utf-8")
    assert list(KEYS) == re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)


def test_ci_runs_the_command_that_readme_gives() -> None:
    """CI takes the test command from README, so both stay one."""
    commands = re.findall(r"^python3 -m venv .*pytest$", README, re.MULTILINE)
    assert 1 == len(commands)
