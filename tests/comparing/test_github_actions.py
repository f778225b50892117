"""The example workflow is valid, and its commands do what docs/ci.md says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import tiny

REPO = Path(__file__).parents[2]
WORKFLOW: dict[Any, Any] = yaml.safe_load((REPO / "examples" / "github-actions.yml").read_text())
STEPS = WORKFLOW["jobs"]["kept-layers"]["steps"]


def shell(script: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a step as GitHub does by default, with the environment of the workflow."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    summary = {"GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    return subprocess.run(
        ["bash", "-e", "-c", script],
        env={**os.environ, "PATH": path, **WORKFLOW["env"], **summary},
        cwd=folder,
        capture_output=True,
        text=True,
    )


def step(name: str) -> str:
    """Return the script of a step."""
    (found,) = (each["run"] for each in STEPS if each.get("name") == name)
    return str(found)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository's folder with model, inputs, and the baseline made as documented."""
    folder = tmp_path_factory.mktemp("checkout")
    tiny.write_model(folder / WORKFLOW["env"]["MODEL"])
    inputs = folder / WORKFLOW["env"]["INPUTS"]
    inputs.mkdir()
    np.savez(inputs / "0.npz", x=tiny.samples()[0]["x"])
    documented = (REPO / "docs" / "ci.md").read_text()
    found = re.search(r"```\n( +precision-bisect .*?)```", documented, re.DOTALL)
    assert found is not None
    made = shell(found[1], folder)
    assert 0 == made.returncode, made.stderr
    return folder


def test_actions_are_pinned() -> None:
    """Each action is named by its commit, and the workflow may only read."""
    used = [each["uses"] for each in STEPS if "uses" in each]
    assert 3 == len(used)
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action) for action in used)
    assert {"contents": "read"} == WORKFLOW["permissions"]
    assert "pull_request" in WORKFLOW[True]  # YAML 1.1 reads `on` so


@pytest.mark.nightly
def test_an_unchanged_model_passes(checkout: Path) -> None:
    """The search ends with 0, and the summary names the layers that are kept."""
    shell("rm -rf precision-run summary.md", checkout)
    ran = shell(step("Search"), checkout)
    assert 0 == ran.returncode, ran.stderr
    summary = (checkout / "summary.md").read_text()
    assert all(f"- `{layer}`\n" in summary for layer in tiny.KEPT)
    (uploaded,) = (each["with"]["path"] for each in STEPS if "upload" in each.get("uses", ""))
    assert (checkout / uploaded / "report.html").exists()


def test_a_kept_set_that_grows_fails(checkout: Path) -> None:
    """The step fails and names the layers, in an annotation and in the summary."""
    shell("rm -rf precision-run summary.md", checkout)
    baseline = checkout / WORKFLOW["env"]["BASELINE"]
    whole = baseline.read_text()
    fields = json.loads(whole)
    baseline.write_text(json.dumps({**fields, "kept": tiny.KEPT[:2]}))
    ran = shell(step("Search"), checkout)
    baseline.write_text(whole)
    assert 1 == ran.returncode
    assert "kept and not in the baseline: n13_Mul, n14_Sqrt" in ran.stderr
    assert re.search("^::error .*n13_Mul, n14_Sqrt", ran.stdout + ran.stderr, re.MULTILINE)
    assert "kept and not in the baseline" in (checkout / "summary.md").read_text()
