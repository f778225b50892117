"""TensorRT's warnings, in the words of its versions, become short lines with names."""

import time

import pytest

from precision_bisect.backends.backend_plugin import Message
from precision_bisect.backends.tensorrt.build_remarks import (
    MOST_NOTES,
    MOST_OF_A_REMARK,
    Remarks,
    builder_remarks,
)
from precision_bisect.trial import Listed


def warnings(*texts: str) -> list[Message]:
    """Return warnings with these texts."""
    return [Message("WARNING", text) for text in texts]


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
            "Detected layernorm nodes in FP16",
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
            "Some advice\n(Unnamed Layer* 3) [Convolution]: a non-conforming implementation was "
            "chosen than was requested i.e. requested layer computation precision",
            "(Unnamed Layer* 3) [Convolution]: a non-conforming implementation was chosen than "
            "was requested",
        ),
        (
            "Could not find any implementation for node {ForeignNode[a...b]} due to memory.",
            "Could not find any implementation for node {ForeignNode[a...b]} due to memory.",
        ),
    ],
)
def test_known_warnings_are_noted(text: str, note: str) -> None:
    """A warning worth a line is quoted up to where it turns to general advice."""
    assert (note,) == builder_remarks(warnings(text)).notes


def test_counts_add_up_and_repetitions_are_one_note() -> None:
    """Weights of one kind are counted over the whole build, and equal remarks are made once."""
    affected = "- {} weights are affected by this issue: Detected NaN values.\n"
    block = "TensorRT encountered issues when converting weights between types.\n"
    layernorm = "Running layernorm in FP16 may cause overflow."
    assert ("weights, 5 affected: Detected NaN values.",) == builder_remarks(
        warnings(block, affected.format(2), layernorm, layernorm, affected.format(3))
    ).notes
    repeated = warnings(*["One or more weights outside the range of HALF was clamped"] * 2)
    assert 1 == len(builder_remarks(repeated).notes)


def test_notes_are_capped() -> None:
    """A builder that never stops remarking gets a last line that counts the rest."""
    many = warnings(
        *(f"Could not find any implementation for node {n}" for n in range(MOST_NOTES + 3))
    )
    assert MOST_NOTES == len(builder_remarks(many).notes)
    assert "and 4 more remarks of the builder" == builder_remarks(many).notes[-1]


def test_other_messages_make_no_note() -> None:
    """What is not known to matter is left out."""
    assert Remarks() == builder_remarks(
        warnings("Using default for use_dla", "Some setting is ignored")
    )


@pytest.mark.parametrize(
    ("messages", "note", "names"),
    [
        (
            warnings("Detected layernorm nodes in FP16: /ln/Pow, /ln/Div"),
            "Detected layernorm nodes in FP16",
            ("/ln/Div", "/ln/Pow"),
        ),
        (
            [
                *warnings("Detected layernorm nodes in FP16."),
                Message("VERBOSE", "/ln/Pow,/ln/Div"),
            ],
            "Detected layernorm nodes in FP16",
            ("/ln/Div", "/ln/Pow"),
        ),
        (
            [
                *warnings("- 2 weights are affected by this issue: Detected NaN values."),
                Message(
                    "VERBOSE", "  List of affected weights: /a/Conv.weight, /b/Conv + /c.bias"
                ),
            ],
            "weights, 2 affected: Detected NaN values.",
            ("/a/Conv.weight", "/b/Conv + /c.bias"),
        ),
        (
            warnings(
                "Weights [name=Conv_1 + Mul_2.weight] had the following issues when "
                "converted to FP16:"
            ),
            "weights, 1 affected: Issues when converted to FP16.",
            ("Conv_1 + Mul_2.weight",),
        ),
        (
            [
                Message("VERBOSE", "Importing initializer: head.weight"),
                *warnings(
                    "WeightsContext.cpp:80: One or more weights outside the range of FLOAT "
                    "was clamped"
                ),
            ],
            "One or more weights outside the range of FLOAT was clamped",
            ("head.weight",),
        ),
    ],
    ids=["same line", "next line", "affected", "each weight", "clamped"],
)
def test_names_come_with_their_warning(
    messages: list[Message], note: str, names: tuple[str, ...]
) -> None:
    """What TensorRT lists with a warning, or beside it in a verbose log, is kept with it."""
    assert Remarks(notes=(note,), listed=(Listed(note=note, names=names),)) == builder_remarks(
        messages
    )


def test_kept_layers_without_a_mark_are_a_remark() -> None:
    """What TensorRT could not be told of is a note with the names, beside its own."""
    note = "TensorRT has no layer to mark for 2 kept layers"
    found = builder_remarks([], ["b", "a"])
    assert Remarks(notes=(note,), listed=(Listed(note=note, names=("a", "b")),)) == found


@pytest.mark.parametrize("severity", ["VERBOSE", "WARNING"])
def test_long_messages_are_quick(severity: str) -> None:
    """Reading takes time in proportion to the text: an engine of many layers is one message."""
    names = ", ".join(f"/encoder/layer.{n}/MatMul + /x.weight" for n in range(5000))
    start = time.process_time()
    assert Remarks() == builder_remarks([Message(severity, f"Something about {names}")])
    assert 1 > time.process_time() - start


def test_only_what_is_loud_is_quoted() -> None:
    """A name in the description of an engine is no remark, whatever it says."""
    text = "Layers:\nName: Could not find any implementation for node a, LayerType: kgen"
    assert Remarks() == builder_remarks([Message("VERBOSE", text)])


def test_a_warning_is_no_list_of_names() -> None:
    """Where a builder lists no names, its next warning is not taken for them."""
    bare = "Detected layernorm nodes in FP16."
    other = "Running layernorm after self-attention may cause overflow. Forcing Pow, or exporting"
    found = builder_remarks(warnings(bare, other))
    assert 2 == len(found.notes)
    assert () == found.listed


def test_very_many_names_are_cut() -> None:
    """A ledger with a build of a large model in each row does not grow without bound."""
    names = ", ".join(f"/layers.{n}/Pow" for n in range(MOST_OF_A_REMARK + 5))
    (listed,) = builder_remarks(warnings(f"Detected layernorm nodes in FP16: {names}")).listed
    assert MOST_OF_A_REMARK == len(listed.names)
