"""Which checks are tried where an operator chooses rows: those that can judge what it gives."""

import numpy as np

from precision_bisect.explaining.advice.chosen_rows import checks_of

OUTPUTS = ("classes", "scores", "features")
REFERENCE = {
    "classes": np.array([3, 1]),
    "scores": np.array([0.5, 0.2], np.float32),
    "features": np.zeros((2, 4), np.float32),
}


def test_only_whole_numbers_are_classes() -> None:
    """The largest of a row of features says nothing of what it stands for."""
    for chosen, judges_classes in (
        (["classes"], True),
        (["scores"], False),
        (["classes", "scores"], False),
    ):
        checks = [*checks_of(OUTPUTS, REFERENCE, chosen)]
        assert [("boxes", OUTPUTS), ("boxes", chosen)] == checks[:2]
        assert ([("top1", chosen)] if judges_classes else []) == checks[2:]
