"""What the exporters of PyTorch make of modules in 16 bits: docs/engines/exporters.md.

    cd benchmarks; python -m engines.exporters

Each module is exported in FP32, FP16, BF16 and under autocast, by torch.export with and without
its optimizer, and by TorchScript. The file runs beside the module, on inputs with a row of zeros
or a masked row where the module has a guard for these.
"""

import json
from typing import Any

from engines import environments, pages

NAME = "exporters"
PACKAGES = (
    "torch==2.13.0",
    "onnx==1.23.2",
    "onnxruntime==1.32.0",
    "onnxscript==0.7.2",
    "numpy==2.4.6",
)


def data() -> dict[str, Any]:
    """Return the whole table."""
    interpreter = environments.python("engines-exporters", PACKAGES)
    printed = environments.run_module(interpreter, "engines.exporter_runs")
    answer = json.loads(printed.splitlines()[-1])
    versions = dict(package.split("==") for package in PACKAGES)
    return {"date": pages.today(), "versions": versions, "modules": answer}


def page(table: pages.Data) -> str:
    """Return the page."""
    lines = pages.heading("What PyTorch's exporters write", table, "exporters")
    lines += [
        "Each file beside its module. *Ill-typed*: ONNX's full checker refuses it. *Upcast gone*:"
        " what the module computes in FP32 reads 16 bits in the file. *a for b*: the file gives a"
        " where the module gives b. BF16 files are not run. An empty cell: as the module.",
        "",
    ]
    rows = []
    kinds: list[str] = []
    for module, by_exporter in table["modules"].items():
        for exporter, cells in by_exporter.items():
            kinds = [*cells]
            if any(cells.values()):
                rows.append((module, exporter, *cells.values()))
    lines += pages.table(("module", "exporter", *kinds), rows)
    fine = [
        module
        for module, by_exporter in table["modules"].items()
        if not any(word for cells in by_exporter.values() for word in cells.values())
    ]
    lines += pages.table(("right everywhere",), [(module,) for module in fine])
    return "\n".join(lines)


def main() -> None:
    """Write the table."""
    made = data()
    pages.write(NAME, made, page(made))


if __name__ == "__main__":
    main()
