"""TensorRT's messages, in the words of its versions, become a few short lines."""

import pytest

from precision_bisect.backends.tensorrt.log import Message
from precision_bisect.backends.tensorrt.messages import MOST_NOTES, clean, first_error, notes

NO_DRIVER = (
    "[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime (In catchCudaError at "
    "/_src/common/dispatch/checkMacros.cpp:250 (cudaError 35: CUDA driver version is insufficient "
    "for CUDA runtime version))"
)


def warnings(*texts: str) -> list[Message]:
    """Return warnings with these texts."""
    return [Message("WARNING", text) for text in texts]


def errors(*texts: str) -> list[Message]:
    """Return errors with these texts."""
    return [Message("ERROR", text) for text in texts]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (
            "Running layernorm after self-attention in FP16 may cause overflow. Exporting the "
            "model to the latest available ONNX opset (later than opset 17) to use the "
            "INormalizationLayer, or forcing layernorm layers to run in FP32 precision can help "
            "with preserving accuracy.",
            "Running layernorm after self-attention in FP16 may cause overflow.",
        ),
        (
            "Running layernorm after self-attention with FP16 Reduce or Pow may cause overflow. "
            "Forcing Reduce or Pow Layers in FP32 precision",
            "Running layernorm after self-attention with FP16 Reduce or Pow may cause overflow.",
        ),
        (
            "Detected layernorm nodes in FP16: /ln/Pow, /ln/Div",
            "Detected layernorm nodes in FP16: /ln/Pow, /ln/Div",
        ),
        (
            "One or more weights outside the range of FLOAT was clamped",
            "One or more weights outside the range of FLOAT was clamped",
        ),
        (
            " - 3 weights are affected by this issue: Detected subnormal FP16 values.",
            "weights, 3 affected: Detected subnormal FP16 values.",
        ),
        (
            "Weights [name=Conv_620 + PWN(Mul_622).weight] had the following issues when "
            "converted to FP16:",
            "weights, 1 affected: Issues when converted to FP16.",
        ),
        (
            "No implementation of layer mul obeys the requested constraints in strict mode. No "
            "conforming implementation was found",
            "No implementation of layer mul obeys the requested constraints",
        ),
        (
            "Could not find any implementation for node {ForeignNode[a...b]} due to memory.",
            "Could not find any implementation for node {ForeignNode[a...b]} due to memory.",
        ),
    ],
)
def test_known_warnings_are_noted(text: str, note: str) -> None:
    """A warning worth a line is quoted up to where it turns to general advice."""
    assert (note,) == notes(warnings(text))


def test_counts_add_up_and_repetitions_are_one_note() -> None:
    """Weights of one kind are counted over the whole build, and equal remarks are made once."""
    affected = "- {} weights are affected by this issue: Detected NaN values.\n"
    block = "TensorRT encountered issues when converting weights between types.\n"
    layernorm = "Running layernorm in FP16 may cause overflow."
    assert ("weights, 5 affected: Detected NaN values.",) == notes(
        warnings(block, affected.format(2), layernorm, layernorm, affected.format(3))
    )
    repeated = warnings(*["One or more weights outside the range of HALF was clamped"] * 2)
    assert 1 == len(notes(repeated))


def test_notes_are_capped() -> None:
    """A builder that never stops remarking gets a last line that counts the rest."""
    many = warnings(*(f"Detected layernorm nodes in FP16: {n}" for n in range(MOST_NOTES + 3)))
    assert MOST_NOTES == len(notes(many))
    assert "and 4 more remarks of the builder" == notes(many)[-1]


def test_other_messages_make_no_note() -> None:
    """What is not known to matter is left out."""
    assert () == notes(warnings("Using default for use_dla", NO_DRIVER))


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([], ""),
        (
            [
                NO_DRIVER,
                "ITensor::getDimensions: Error Code 4: API Usage Error (mm: `A` is of type Half "
                "and `B` is of type Float. In validateTypes at /_src/nodes/matrixNode.cpp:38)",
                'ModelImporter.cpp:140: While parsing node number 1 [MatMul -> "y"]:',
            ],
            "mm: `A` is of type Half and `B` is of type Float.",
        ),
        (
            [
                "10: [optimizer.cpp::computeCosts::3869] Error Code 10: Internal Error (Could not "
                "find any implementation for node {ForeignNode[a...b]}.)",
                "2: [builder.cpp::buildSerializedNetwork::751] Error Code 2: Internal Error "
                "(Assertion engine != nullptr failed. )",
            ],
            "Could not find any implementation for node {ForeignNode[a...b]}.",
        ),
        (
            [
                'ModelImporter.cpp:140: While parsing node number 7 [Mish -> "y"]:',
                "ModelImporter.cpp:142: --- Begin node ---\nNode name: act",
                "ModelImporter.cpp:151: ERROR: onnxOpImporters.cpp:2 In function importMish:\n"
                "[8] Assertion failed: (x->getType() == DataType::kFLOAT): Only FLOAT32 input is "
                "supported.",
            ],
            "act: importMish: Only FLOAT32 input is supported.",
        ),
        (
            [
                'ModelImporter.cpp:140: While parsing node number 1 [Det -> "y"]:',
                "ModelImporter.cpp:142: --- Begin node ---\nNode name: ",
                "ModelImporter.cpp:151: ERROR: onnxOpCheckers.cpp:1130 In function checkDet:\n"
                "[8] false",
            ],
            '[Det -> "y"]: checkDet: false',
        ),
        (["Something\nelse\x07 went wrong"], "Something else\N{REPLACEMENT CHARACTER} went wrong"),
        ([NO_DRIVER], clean(NO_DRIVER)),
    ],
)
def test_first_error_is_one_line_of_tensorrt(texts: list[str], said: str) -> None:
    """The first error that is one is shown without codes, source positions and line breaks."""
    assert said == first_error([*warnings("a warning"), *errors(*texts)])


def test_long_errors_are_cut() -> None:
    """An error that lists thousands of tensors keeps to a readable length."""
    assert 300 == len(first_error(errors("x" * 1000)))
