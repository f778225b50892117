#!/bin/sh
# Guess: torch.onnx.export gives an output the name of output_names, and renames what is called so inside.
# Seen (torch 2.13.0, onnxscript 0.7.2): with output_names=["embedding"] an nn.Embedding inside, whose tensor is named
# after its operator, keeps its name: two nodes write `embedding`, and onnx and ONNX Runtime refuse the file. No warning
# tells it. Another name gives a valid file.
# Exits with 1 where that has changed.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 onnxscript==0.7.2 torch==2.13.0
"$place/venv/bin/python" - "$place" <<'PYTHON'
import sys

import onnx
import onnxruntime as ort
import torch


class Encoder(torch.nn.Module):
    """The mean of the vectors of some ids."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids).mean(1)


def exported(output: str) -> tuple[int, bool, bool]:
    """Return how many nodes write the output, and whether onnx and ONNX Runtime take the file."""
    path = f"{sys.argv[1]}/{output}.onnx"
    ids = torch.zeros(1, 3, dtype=torch.long)
    torch.onnx.export(Encoder().eval(), (ids,), path, dynamo=True, output_names=[output], verbose=False)
    writers = sum(output in node.output for node in onnx.load(path).graph.node)
    taken = []
    for open_file in (onnx.checker.check_model, ort.InferenceSession):
        try:
            open_file(path)
            taken.append(True)
        except Exception as error:
            print(f"{output}:", str(error).splitlines()[0])
            taken.append(False)
    return writers, *taken


found = {output: exported(output) for output in ("embedding", "sentence")}
print(found)
sys.exit(found != {"embedding": (2, False, False), "sentence": (1, True, True)})
PYTHON
