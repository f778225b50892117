"""What a real kernel is sent while a search goes on in a cell."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from models import OVERFLOW, parse, save
from patience import PATIENCE_S

nbformat = pytest.importorskip("nbformat", reason="needs nbformat, which comes with nbclient")
nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel")
pytest.importorskip("ipykernel", reason="needs ipykernel")

EXAMPLE = Path(__file__).parents[2] / "docs" / "notebook.ipynb"
PATIENT: Mapping[str, Any] = {
    "kernel_name": "python3",
    **dict.fromkeys(("timeout", "startup_timeout", "iopub_timeout"), int(PATIENCE_S)),
}
CELL = """
import numpy as np
import precision_bisect

precision_bisect.find(MODEL, inputs={"x": np.array([300.0], np.float32)}, out=OUT, progress=True)
"""


def outputs_of(source: str) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Run a cell; return its outputs, and each state of the line that is drawn anew."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    drawn: list[str] = []

    class Client(nbclient.NotebookClient):  # type: ignore[misc,name-defined] # no types
        def process_message(self, msg: Any, cell: Any, index: int) -> Any:
            """Note what is drawn, then what it replaces."""
            content = msg["content"]
            if content.get("transient", {}).get("display_id"):
                drawn.append(content["data"]["text/html"])
            return super().process_message(msg, cell, index)

    Client(notebook, **PATIENT).execute()
    return [each.get("data", each) for each in notebook.cells[0].outputs], drawn


@pytest.mark.filterwarnings("ignore::DeprecationWarning:zmq", "ignore::RuntimeWarning:zmq")
def test_a_search_is_watched_in_its_cell(tmp_path: Path) -> None:
    """One line is drawn anew until the end; what belongs to the record stays, and the result."""
    model = save(parse(OVERFLOW), tmp_path, "<img src=x>.onnx")
    source = CELL.replace("MODEL", repr(str(model))).replace("OUT", repr(str(tmp_path / "run")))
    (line, *record, result), drawn = outputs_of(source)
    assert "Reading the model" in drawn[0]
    assert drawn[-1] == line["text/html"]
    assert "Reading" not in drawn[-1]
    shown = "".join(each["text/html"] for each in record)
    assert "every layer high: pass" in shown
    assert "&lt;img src=x&gt;.onnx" in shown
    assert "<img" not in shown + "".join(drawn)
    assert "Nothing gained" in result["text/html"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:zmq", "ignore::RuntimeWarning:zmq")
def test_the_example_of_the_documents_runs() -> None:
    """Every cell does, and shows the result and its curve."""
    notebook = nbformat.read(EXAMPLE, as_version=4)
    nbclient.NotebookClient(notebook, **PATIENT).execute()
    shown = [str(each.get("data")) for cell in notebook.cells for each in cell.get("outputs", ())]
    assert sum("<svg" in each for each in shown) == 2
