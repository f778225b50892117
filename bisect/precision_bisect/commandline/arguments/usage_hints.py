"""What a command line that argparse refuses may mean."""

import argparse
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence

from precision_bisect.options import DEFAULT_LOW
from precision_bisect.precisions import LOW_NAMES

NEAR = 0.8
"""Words are alike from this share of common letters on, as difflib counts it."""
SHORT = 4
"""Longer words are alike, too, where one is the beginning of the other."""


def unknown_meant(arguments: Sequence[str], flags: Mapping[str, argparse.Action]) -> str:
    """Return what arguments beyond the known ones may mean: a low type, samples, a flag.

    "" where nothing is known.
    """
    words = [word for each in arguments for word in each.split("=")]
    types = [word.lstrip("-") for word in words if word.lstrip("-") in LOW_NAMES]
    if types and "--low" in flags:
        return f"write --low {types[0]} ({DEFAULT_LOW} is the default)"
    paths = [word for word in words if os.path.lexists(word) and not word.endswith(".onnx")]
    # Beside a flag that is not known a path is its value.
    if paths and "--inputs" in flags and not any(word.startswith("--") for word in words):
        given = shlex.quote(paths[0]) if len(paths) == 1 else "PATH"
        return f"give samples by --inputs {given}, one file or one folder"
    near = (each for word in words if word.startswith("--") for each in close_matches(word, flags))
    return _did_you_mean(list(near))


def choice_meant(word: str, choices: Iterable[str]) -> str:
    """Return which choice a word is near to, or leaves letters out of, as trt of tensorrt."""
    every = list(choices)
    near = close_matches(word, every) or [each for each in every if _skips_letters(word, each)]
    return _did_you_mean(near)


def _skips_letters(word: str, choice: str) -> bool:
    rest = iter(choice)
    return len(word) > 1 and word[0] == choice[0] and all(letter in rest for letter in word)


def _did_you_mean(meant: Sequence[str]) -> str:
    return f"did you mean {meant[0]}?" if meant else ""


def close_matches(word: str, known: Iterable[str]) -> list[str]:
    """Return the known word that one which is not known may mean, none where all are far off."""
    from difflib import get_close_matches

    every = list(known)
    begun = [each for each in every if len(each) > SHORT and word.startswith(each)]
    return begun or get_close_matches(word, every, 1, NEAR)
