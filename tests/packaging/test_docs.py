"""What the documents say is what the code does."""

import importlib
import json
import re
import tomllib
from pathlib import Path

import pytest

from precision_bisect.commandline.arguments.run_flags import run_parser
from precision_bisect.plugins import STRATEGIES, installed, load_strategy
from precision_bisect.runs.results.result import KEYS

REPO = Path(__file__).parents[2]
README = (REPO / "README.md").read_text(encoding="utf-8")


def test_readme_names_only_flags_that_exist() -> None:
    """Every --flag of precision-bisect that README mentions is known to the parser."""
    ours = {flag for action in run_parser()._actions for flag in action.option_strings}
    foreign = {"--layerPrecisions"}
    lines = (line for line in README.splitlines() if not re.match(r"python|pip ", line))
    mentioned = set(re.findall(r"(?<![\w-])--[A-Za-z][\w-]*", "\n".join(lines)))
    assert set() == mentioned - ours - foreign


@pytest.mark.parametrize("name", sorted(installed(STRATEGIES)))
def test_readme_names_every_strategy(name: str) -> None:
    """README's table of strategies is complete."""
    assert f"`{name}`" in README


@pytest.mark.parametrize("name", sorted(installed(STRATEGIES)))
def test_strategies_are_documented_with_their_assumptions(name: str) -> None:
    """docs/strategies.md has an entry per strategy, with the assumption that it declares."""
    text = (REPO / "docs" / "strategies.md").read_text(encoding="utf-8")
    assert f"- `{name}`: {load_strategy(name).assumption}" in " ".join(text.split())


def test_every_extra_is_documented() -> None:
    """docs/install.md names each extra of the package, and no other."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (REPO / "docs" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^- (`.*?): ", page, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    assert set(project["optional-dependencies"]) == named


def test_result_keys_are_documented() -> None:
    """docs/result.md has one entry per key of result.json, in order."""
    text = (REPO / "docs" / "result.md").read_text(encoding="utf-8")
    assert list(KEYS) == re.findall(r"^- `(\w+)`: ", text.partition("## ")[0], re.MULTILINE)


def test_ci_runs_the_command_that_readme_gives() -> None:
    """CI takes the test command from README, so both stay one."""
    commands = re.findall(r"^python3 -m venv .*pytest -n 2$", README, re.MULTILINE)
    assert 1 == len(commands)


def test_the_reference_is_what_the_commands_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/reference.md is the help of every command, as it is now."""
    monkeypatch.syspath_prepend(REPO / "docs")
    page = importlib.import_module("make_reference").reference()
    assert (REPO / "docs" / "reference.md").read_text(encoding="utf-8") == page


PAGES = ["README.md", *sorted(path.name for path in (REPO / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """Every relative link names a file of the repository."""
    path = REPO / page if page == "README.md" else REPO / "docs" / page
    for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / link).exists(), link


def test_the_benchmarks_page_has_the_measured_rows() -> None:
    """The table of measurements has a row per committed result, with its figures."""
    page = (REPO / "benchmarks/README.md").read_text(encoding="utf-8")
    for row in json.loads((REPO / "benchmarks/results/command_line.json").read_text()):
        figures = f"| {row['kept']} of {row['candidates']} | {row['trials']} |"
        assert any(
            f"`{row['strategy']}`" in line and figures in line for line in page.splitlines()
        )
