"""TensorRT's errors, in the words of its versions, become one short line."""

import pytest

from precision_bisect.backends.backend_plugin import Message
from precision_bisect.backends.tensorrt.log import (
    core_of_error,
    cuda_failed,
    first_error,
    out_of_memory,
)

NO_DRIVER = (
    "[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime (In catchCudaError at "
    "/_src/common/dispatch/checkMacros.cpp:250 (cudaError 35: CUDA driver version is insufficient "
    "for CUDA runtime version))"
)


def errors(*texts: str) -> list[Message]:
    """Return errors with these texts."""
    return [Message("ERROR", text) for text in texts]


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
        (
            [
                NO_DRIVER,
                "Error Code: 9: Skipping tactic 0xfe80445f7bb61a99 due to exception Assertion "
                "vol == 1 failed.",
                "IBuilder::buildSerializedNetwork: Error Code 10: Internal Error (Could not find "
                "any implementation for node a + b.)",
            ],
            "Could not find any implementation for node a + b.",
        ),
        (
            [NO_DRIVER, "9: Skipping tactic 0x0 due to exception Unexpected type"],
            "9: Skipping tactic 0x0 due to exception Unexpected type",
        ),
        (["Something\nelse\x07 went wrong"], "Something else\N{REPLACEMENT CHARACTER} went wrong"),
        ([NO_DRIVER], core_of_error(NO_DRIVER)),
    ],
)
def test_first_error_is_one_line_of_tensorrt(texts: list[str], said: str) -> None:
    """The first error that is one is shown without codes, source positions and line breaks."""
    assert said == first_error([Message("WARNING", "a warning"), *errors(*texts)])


def test_long_errors_are_cut() -> None:
    """An error that lists thousands of tensors keeps to a readable length."""
    assert 300 == len(first_error(errors("x" * 1000)))


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        (
            "1: [cudaResources.cpp::~ScopedCudaEvent::24] Error Code 1: Cuda Runtime "
            "(an illegal memory access was encountered)",
            True,
        ),
        (
            "IExecutionContext::enqueueV3: Error Code 1: Myelin ([cask.cpp:exec_with_offset:1448] "
            "Platform (Cuda) error)",
            True,
        ),
        ("Skipping tactic 0x0 due to Myelin error: autotuning: CUDA error 719 launching x", True),
        ("Skipping tactic 0x0 due to Myelin error: autotuning failed", False),
        (
            "Skipping tactic 0x0000000000000000 due to Myelin error: Formal output tensor "
            '"mlp_0_bias _ (Unnamed Layer_ 377) [Shuffle]_constant" is also a data tensor.',
            False,
        ),
        (
            "IBuilder::buildSerializedNetwork: Error Code 1: Myelin ([myelin_graph.h:1295: "
            "attachExceptionMsgToGraph] MyelinCheckException: decompose_composite_ops.cpp:59: "
            "CHECK(composite_op->is_decomposable()) failed.)",
            False,
        ),
        (
            "Error Code: 9: Skipping tactic 0x0 due to exception CUDA error 700 from "
            "cuStreamSynchronize: an illegal memory access was encountered",
            True,
        ),
        ("Error Code: 9: Skipping tactic 0x0 due to exception CUDA error 35 from x", False),
        ("Error Code: 9: Skipping tactic 0x0 due to exception Unexpected type", False),
        (NO_DRIVER, False),
        (
            "10: [optimizer.cpp::computeCosts::3869] Error Code 10: Internal Error (Could not "
            "find any implementation for node {ForeignNode[a...b]}.)",
            False,
        ),
    ],
)
def test_failures_of_cuda_are_told_from_others(text: str, failed: bool) -> None:
    """After one of CUDA, or of a library that runs kernels, a process is not to be trusted."""
    assert failed == cuda_failed(errors("another one", text))
    assert not cuda_failed([Message("WARNING", text)])


NO_TACTIC = Message(
    "ERROR",
    "10: [optimizer.cpp::computeCosts::3728] Error Code 10: Internal Error (Could not find any "
    "implementation for node {ForeignNode[a...b]}.)",
)
SKIPPED = Message(
    "WARNING",
    "Skipping tactic 0x0000000000000000 due to Myelin error: autotuning: CUDA error 2 allocating "
    "6443238909-byte buffer: out of memory",
)
REQUESTED = Message(
    "WARNING",
    "Requested amount of GPU memory (4294967296 bytes) could not be allocated. There may not be "
    "enough free memory for allocation to succeed.",
)
MISTYPED = Message(
    "ERROR",
    "ITensor::getDimensions: Error Code 4: API Usage Error (mm: `A` is of type Half and `B` is of "
    "type Float. In validateTypes at /_src/nodes/matrixNode.cpp:38)",
)


@pytest.mark.parametrize(
    ("messages", "short"),
    [
        ([SKIPPED, NO_TACTIC], True),
        ([REQUESTED, NO_TACTIC], True),
        (
            errors(
                "2: [virtualMemoryBuffer.cpp::resizePhysical::160] Error Code 2: OutOfMemory "
                "(no further information)"
            ),
            True,
        ),
        (
            errors(
                "1: [defaultAllocator.cpp::allocate::63] Error Code 1: Cuda Runtime "
                "(out of memory)"
            ),
            True,
        ),
        ([NO_TACTIC], False),
        ([REQUESTED, MISTYPED], False),
    ],
)
def test_want_of_memory_is_told(messages: list[Message], short: bool) -> None:
    """It is told from other failures; a tactic that was skipped for it ends no build by itself."""
    assert short == out_of_memory(messages)
