"""Links between the documents lead to a page and to a heading of it; flags exist."""

import re
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
PAGES = [
    path
    for pattern in ("*.md", "docs/*.md", "*/README.md", "examples/*/README.md", ".github/*.md")
    for path in sorted(REPO.glob(pattern))
]
REFERENCE = (REPO / "docs" / "reference.md").read_text(encoding="utf-8")
FOREIGN = {
    "--atol --rtol --trt --onnx --onnx_path --output_path --low_precision_type --keep_io_types",
    "--data_max --init_max --nodes_to_exclude --strongly-typed --validate --load-inputs",
    "--load-outputs --save-inputs --save-outputs --fp16 --precision-constraints",
    "--trt-network-postprocess-script --layerPrecisions --staticPlugins --saveEngine --nthreads",
    "--no-index --find-links --extra-index-url --no-build-isolation --upgrade --group --shell",
    "--app-name --library-defaults --provider --front --seeds",
}
"""Flags of pip, Polygraphy, trtexec, AutoCast, Dask, and of scripts that the pages describe."""


def slugs(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(REPO)))
def test_links_lead_to_a_heading(path: Path) -> None:
    """Every relative link names a file of the repository and, behind a #, a heading of it."""
    for link in re.findall(r"\]\(([^):]+)\)", path.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), link
        assert not anchor or anchor in slugs(target), link


@pytest.mark.parametrize("path", PAGES[1:], ids=lambda path: str(path.relative_to(REPO)))
def test_flags_exist(path: Path) -> None:
    """Every --flag on a page of docs/ is one of a command, or of a known other tool."""
    if path.parent.name != "docs":
        return
    known = set(re.findall(r"--[A-Za-z][\w-]*", REFERENCE))
    known |= {flag for line in FOREIGN for flag in line.split()}
    text = path.read_text(encoding="utf-8")
    assert set() == set(re.findall(r"(?<![\w-])--[A-Za-z][\w-]*", text)) - known
