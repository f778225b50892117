"""What every comparator promises, as a test that anybody can run on theirs.

`check_comparator(comparator, reference)` in a test of yours. It needs nothing but this package.
"""

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_bisect.protocols import Comparator, Judgement, Sample
from precision_bisect.testing.driving import ContractError, require
from precision_bisect.trial import Verdict

_THREADS = 4


def check_comparator(comparator: Comparator, reference: Sequence[Sample]) -> None:
    """Check every promise on outputs made from `reference`, by output name, one per sample.

    Take outputs of the shapes and values of your model. Raises ContractError, an AssertionError,
    for the first promise that is broken.
    """
    for promise in COMPARATOR_PROMISES:
        promise(comparator, reference)


def _the_reference_passes(comparator: Comparator, reference: Sequence[Sample]) -> None:
    """The reference itself passes."""
    judgement = _judged(comparator, reference, reference)
    require(
        judgement.verdict is Verdict.PASS, f"the reference itself fails: error {judgement.error}"
    )


def _damage_fails(comparator: Comparator, reference: Sequence[Sample]) -> None:
    """Outputs that are turned round and ten times as large fail."""
    damaged = _each(reference, lambda array: 1 - 10 * array)
    judgement = _judged(comparator, damaged, reference)
    require(
        judgement.verdict is Verdict.FAIL, f"1 - 10 * reference passes: error {judgement.error}"
    )


def _nothing_infinite_passes(comparator: Comparator, reference: Sequence[Sample]) -> None:
    """One NaN or Inf in any floating-point output of any sample fails."""
    for number, sample in enumerate(reference):
        for name in (name for name, array in sample.items() if array.dtype.kind == "f"):
            for bad in (np.nan, np.inf):
                outputs = _each(reference, np.copy)
                outputs[number][name].flat[0] = bad
                judgement = _judged(comparator, outputs, reference)
                where = f"output {name!r} of sample {number}"
                require(judgement.verdict is Verdict.FAIL, f"{bad} in {where} passes")


def _it_repeats_itself(comparator: Comparator, reference: Sequence[Sample]) -> None:
    """The same outputs get the same verdict: again, from several threads, and when sent on."""
    for outputs in _drawn(reference):
        expected = _judged(comparator, outputs, reference)
        with ThreadPoolExecutor(_THREADS) as pool:
            jobs = [pool.submit(_judged, comparator, outputs, reference) for _ in range(_THREADS)]
            repeats = {"in threads": [job.result() for job in jobs]}
        repeats["when pickled"] = [_judged(_sent(comparator), outputs, reference)]
        for how, judgements in repeats.items():
            require(
                all(judgement == expected for judgement in judgements),
                f"{how} it says {judgements[0]}, not {expected}",
            )


def _sent(comparator: Comparator) -> Comparator:
    """Return it as another process gets it."""
    try:
        sent: Comparator = pickle.loads(pickle.dumps(comparator))
    except Exception as error:  # pickling raises what the object's parts raise
        raise ContractError(f"it cannot be pickled: {error}") from error
    return sent


def _arrays_stay(comparator: Comparator, reference: Sequence[Sample]) -> None:
    """Neither the outputs nor the reference are changed."""
    outputs = next(_drawn(reference))
    before = [_each(arrays, np.copy) for arrays in (outputs, reference)]
    _judged(comparator, outputs, reference)
    for was, samples in zip(before, (outputs, reference), strict=True):
        for one, other in zip(was, samples, strict=True):
            same = all(np.array_equal(one[name], other[name]) for name in one)
            require(same, "it changes the arrays that it judges")


def _settings_are_plain(comparator: Comparator, reference: Sequence[Sample]) -> None:
    """What decides a verdict can be written as JSON, for the fingerprint of the run."""
    try:
        json.dumps(dict(comparator.settings()), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ContractError(f"settings() is no JSON: {error}") from error


Promise = Callable[[Comparator, Sequence[Sample]], None]

COMPARATOR_PROMISES: Sequence[Promise] = (
    _the_reference_passes,
    _damage_fails,
    _nothing_infinite_passes,
    _it_repeats_itself,
    _arrays_stay,
    _settings_are_plain,
)


def _judged(
    comparator: Comparator, outputs: Sequence[Sample], reference: Sequence[Sample]
) -> Judgement:
    """Judge, and check that figure and verdict agree."""
    judgement = comparator.judge(outputs, reference)
    if comparator.tolerance is not None:
        require(judgement.error is not None, "there is a tolerance and no figure")
    if comparator.tolerance is not None and judgement.error is not None:
        within = judgement.error <= comparator.tolerance
        require(
            within == (judgement.verdict is Verdict.PASS),
            f"error {judgement.error} against {comparator.tolerance} "
            f"is called {judgement.verdict.value}",
        )
    return judgement


def _drawn(reference: Sequence[Sample]) -> Iterator[list[dict[str, NDArray[Any]]]]:
    """Yield outputs that are off by a little and by a lot, drawn by a seed."""
    for scale in (1e-4, 1e-1):
        chance = np.random.default_rng(0)
        yield _each(reference, partial(_shaken, chance, scale))


def _shaken(chance: np.random.Generator, scale: float, array: NDArray[Any]) -> NDArray[Any]:
    noise: NDArray[Any] = array + scale * chance.standard_normal(array.shape)
    return noise


def _each(
    samples: Sequence[Sample], change: Callable[[NDArray[Any]], NDArray[Any]]
) -> list[dict[str, NDArray[Any]]]:
    """Return the samples with every array of floats changed; others are copied."""
    return [
        {n: change(a).astype(a.dtype) if a.dtype.kind == "f" else a.copy() for n, a in s.items()}
        for s in samples
    ]
