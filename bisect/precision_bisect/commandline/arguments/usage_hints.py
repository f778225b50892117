"""What a command line that argparse refuses may mean."""

import argparse
import itertools
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence

from precision_bisect.options import DEFAULT_LOW
from precision_bisect.precisions import LOW_NAMES, type_name

NEAR = 0.8
"""Words are alike from this share of common letters on, as difflib counts it."""
SHORT = 4
"""Longer words are alike, too, where one is the beginning of the other."""
_TYPING = "--typing weak, which constrains kept layers by itself"
_OTHERS: Mapping[str, str] = {
    "--onnx": "the model without a flag",
    "--loadInputs": "--inputs NAME:FILE.bin",
    "--load-inputs": "--inputs FILE.json",
    "--data-loader-script": "--inputs SCRIPT.py with load_data()",
    "--val-range": "--range NAME=0:999",
    "--shapes": "--input-shapes NAME:1x3x224x224",
    **{f"--{end}Shapes": f"--{end}-shapes NAME:1x3x224x224" for end in ("min", "opt", "max")},
    **dict.fromkeys(("--stronglyTyped", "--strongly-typed"), "--typing strong"),
    **dict.fromkeys(("--precisionConstraints", "--precision-constraints"), _TYPING),
    **dict.fromkeys(("--layerPrecisions", "--layer-precisions"), _TYPING),
    **dict.fromkeys(("--saveEngine", "--save-engine"), "--keep-engines"),
    **dict.fromkeys(("-o", "--output"), "--out DIR"),
    **dict.fromkeys(("--memPoolSize", "--pool-limit"), "--workspace MIB"),
    "--builderOptimizationLevel": "--builder-optimization-level N",
    **dict.fromkeys(("--staticPlugins", "--dynamicPlugins"), "--plugins LIB.so"),
    "--trt": "--backend tensorrt",
    "--onnxrt": "--backend onnxruntime",
}
"""What flags of trtexec and Polygraphy are called here."""
_TRT = "--trt-"


def others_meant(
    arguments: Sequence[str], flags: Mapping[str, argparse.Action]
) -> tuple[Sequence[str], str]:
    """Return the arguments that are flags of trtexec or Polygraphy, and what to write instead.

    Nothing is returned where the command has no flags of these meanings.
    """
    found: dict[str, str] = {}
    for each in itertools.takewhile("--".__ne__, arguments):
        word = each.partition("=")[0]
        meant = "" if word in flags else _other(word, flags)
        if meant and (not meant.startswith("-") or meant.split()[0] in flags):
            found[each] = meant
    return list(found), f"write {', '.join(dict.fromkeys(found.values()))}" if found else ""


def _other(word: str, flags: Mapping[str, argparse.Action]) -> str:
    if word.startswith(_TRT):
        return next(iter(close_matches(f"--{word.removeprefix(_TRT)}", flags)), "")
    if type_name(word.lstrip("-")) in LOW_NAMES and word.startswith("--"):
        name = type_name(word.lstrip("-"))
        return f"--low {name} ({DEFAULT_LOW} is the default)"
    return _OTHERS.get(word, "")


def unknown_meant(arguments: Sequence[str], flags: Mapping[str, argparse.Action]) -> str:
    """Return what arguments beyond the known ones may mean: a low type, samples, a flag.

    "" where nothing is known.
    """
    words = [word for each in arguments for word in each.split("=")]
    types = [each for each in map(type_name, words) if each in LOW_NAMES]
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
