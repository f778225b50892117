"""The contract catches strategies that are broken on purpose, and lets third parties' run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

import broken
import tiny
from patience import PATIENCE_S
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search, Strategy
from precision_bisect.testing.driving import ContractError
from precision_bisect.testing.strategy_contract import check_strategy

REPO = Path(__file__).parents[2]
EXAMPLE = (REPO / "examples" / "one_by_one" / "one_by_one.py").read_text(encoding="utf-8")
AHEAD = REPO / "strategies" / "README.md"
CONTRACT = [sys.executable, "-m", "precision_bisect.testing.strategy_contract"]


BROKEN = [
    (broken.Failing, r"ends with the plan that keeps .*, which failed \("),
    (broken.Untried, r"ends with the plan that keeps 0, which it never tried \("),
    (broken.Chancy, r"is told the same as .* and differs in batch 1 \("),
    (broken.Mindful, r"is told the same as itself and differs in batch 1 \("),
    (
        broken.Forgetful,
        r"asks the plan that keeps .* again in batch 2, when it knows the outcome \(",
    ),
    (broken.Doubling, r"asks a plan twice in batch 1 \("),
    (broken.Endless, r"does not end within \d+ trials \("),
    (broken.Dreaming, r"does not end within \d+ predictions \("),
    (broken.Boastful, r"claims a minimal answer, but of the plan that keeps .* \d+ can go \("),
    (broken.Beyond, r"proposes to keep layer 1 \(single layer of 1 layers, seed 0\)"),
    (broken.Empty, r"yields an empty batch \("),
    (broken.Listing, r"yields \[Proposal.*, not a tuple of proposals \("),
    (broken.Nothing, r"ends with None, not a plan \("),
    (broken.Talking, r"prints 'halfway there\\n' \("),
    (broken.Trusting, r"raises TypeError: '<=' not supported .* \("),
    (broken.Stubborn, r"raises RuntimeError: generator ignored GeneratorExit \("),
    (broken.Demanding, r"cannot be made: TypeError: .* missing 1 required positional argument"),
    (broken.Mute, r"its assumption is '', not one line of text"),
]


@pytest.mark.parametrize(("make", "message"), BROKEN, ids=[each.__name__ for each, _ in BROKEN])
def test_a_broken_strategy_is_caught(make: type[Strategy], message: str) -> None:
    """Each broken promise is named in one line, with the oracle where it was broken."""
    with pytest.raises(ContractError) as caught:
        check_strategy(make, seeds=range(3))
    assert re.match(message, str(caught.value))
    assert 1 == len(str(caught.value).splitlines())


def test_a_violation_can_be_had_again() -> None:
    """The same seeds break on the same oracle with the same words."""
    messages = []
    for _ in range(2):
        with pytest.raises(ContractError) as caught:
            check_strategy(broken.Failing, seeds=range(3))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("largest", [1, 2, 5])
def test_a_strategy_that_keeps_its_promises_passes(largest: int) -> None:
    """All-high is a poor answer, and an honest one; networks may be as small as they like."""
    check_strategy(broken.Careless, largest=largest, seeds=range(3))


def third_party(folder: Path, source: str, what: str) -> dict[str, str]:
    """Install a package with one strategy into a folder; return the environment that sees it."""
    (folder / "theirs.py").write_text(source, encoding="utf-8")
    info = folder / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[precision_bisect.strategies]\n{what}\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


def test_a_third_party_strategy_runs_and_keeps_the_contract(tmp_path: Path) -> None:
    """The example, installed by entry point, is listed, checked, and searches."""
    environment = third_party(tmp_path, EXAMPLE, "one-by-one = theirs:OneByOne")
    checked = subprocess.run(
        [*CONTRACT, "one-by-one"], env=environment, capture_output=True, text=True
    )
    assert (0, "") == (checked.returncode, checked.stderr)
    assert all(line.startswith("kept ") for line in checked.stdout.splitlines())
    command = [sys.executable, "-m", "precision_bisect"]
    shown = subprocess.run(
        [*command, "--help-all"], env=environment, capture_output=True, text=True
    )
    assert "one-by-one" in shown.stdout
    model = tiny.write_model(tmp_path / "tiny.onnx")
    options = ["--strategy", "one-by-one", "--backend", "emulated", "--json"]
    ran = subprocess.run(
        [*command, str(model), *options, "--out", str(tmp_path / "run")],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert 0 == ran.returncode, ran.stderr
    result = json.loads(ran.stdout)
    assert ("found", tiny.KEPT) == (result["status"], result["kept"])


def test_the_documented_look_ahead_keeps_the_contract() -> None:
    """The step of the document, looked ahead of by `speculate`, is a strategy that keeps all."""
    scope: dict[str, Any] = {}
    (step,) = re.findall(r"```python\n(.*?)```", AHEAD.read_text(encoding="utf-8"), re.DOTALL)
    exec(step, scope)

    class Ahead(broken.Careless):
        minimal: ClassVar[bool] = True

        def search(self, problem: Problem) -> Search[Plan]:
            plan: Plan = yield from scope["search"](problem)
            return plan

    check_strategy(Ahead, seeds=range(3))


def test_the_command_reports_each_promise(tmp_path: Path) -> None:
    """What hangs on hashes of texts, and has another name, breaks two promises: exit code 1."""
    source = EXAMPLE.replace(
        "in plan.indices:", "in map(problem.names.index, set(problem.names)):"
    )
    environment = third_party(tmp_path, source, "hashed = theirs:OneByOne")
    ran = subprocess.run([*CONTRACT, "hashed"], env=environment, capture_output=True, text=True)
    lines = [line for line in ran.stdout.splitlines() if line.startswith("BROKEN")]
    assert (1, "") == (ran.returncode, ran.stderr)
    assert [
        "BROKEN  is installed under its name: is installed as 'hashed', its name is 'one-by-one'",
        "BROKEN  proposes the same in another process: two processes propose differently: "
        "it iterates over a set or hash",
    ] == lines


def test_the_command_outlives_a_strategy_that_raises(tmp_path: Path) -> None:
    """A strategy that raises breaks every promise that takes a search, one line each."""
    source = EXAMPLE.replace("problem.top", "problem.bottom")
    environment = third_party(tmp_path, source, "one-by-one = theirs:OneByOne")
    ran = subprocess.run(
        [*CONTRACT, "one-by-one"], env=environment, capture_output=True, text=True
    )
    first, second, *others = ran.stdout.splitlines()
    assert (1, "") == (ran.returncode, ran.stderr)
    assert ["kept    says what it is", "kept    is installed under its name"] == [first, second]
    assert all(line.startswith("BROKEN ") for line in others)
    assert all("raises AttributeError: 'Problem' object has no" in line for line in others)


def test_the_command_ends_a_search_that_hangs(tmp_path: Path) -> None:
    """A search that neither proposes nor ends is shown where it hangs, and the exit code is 1."""
    source = EXAMPLE.replace("break", "break\n            while plan: pass")
    environment = third_party(tmp_path, source, "one-by-one = theirs:OneByOne")

    def said(limit_s: float) -> str:
        script = (
            "import precision_bisect.testing.strategy_contract as contract;"
            f"contract.TIME_LIMIT_S = {limit_s}; contract.main(['one-by-one'])"
        )
        ran = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True
        )
        assert 1 == ran.returncode
        assert ran.stderr.startswith(f"hangs for more than {limit_s:g} s:\n")
        return ran.stderr

    # On a busy machine what comes before may take as long as a short limit.
    where = f'File "{tmp_path / "theirs.py"}", line'
    assert any(where in said(limit_s) for limit_s in (0.5, 20.0, PATIENCE_S))


def test_the_command_names_what_is_not_installed() -> None:
    """An unknown name is one line on stderr and exit code 2."""
    ran = subprocess.run([*CONTRACT, "quickexplain"], capture_output=True, text=True)
    assert (2, "") == (ran.returncode, ran.stdout)
    assert "there is no strategy 'quickexplain'; did you mean quickxplain?\n" == ran.stderr


def test_the_contract_needs_the_standard_library_alone() -> None:
    """Neither pytest nor Hypothesis nor anything heavy is loaded to check a strategy."""
    script = (
        "import sys; from precision_bisect.testing.strategy_contract import main;"
        "code = main(['prefix']); print(*sys.modules); sys.exit(code)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    loaded = {name.partition(".")[0] for name in ran.stdout.splitlines()[-1].split()}
    assert 0 == ran.returncode
    assert set() == {"pytest", "hypothesis", "numpy", "onnx", "onnxruntime"} & loaded
