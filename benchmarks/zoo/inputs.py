"""Inputs that mean something to a network: text, speech, files, pictures, ids.

Makers take a generator, the path of the model and a number: samples for judging and fresh ones
differ only by their seed. Written text needs Pillow, which is imported where it is used.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zoo.judge import Sample, plain

Floats = NDArray[np.float32]
Rng = np.random.Generator

TEXT = (
    "The ferry to island leaves at half past seven and returns before dark Invoice No 40817 "
    "Total 1,204.50 EUR Please retain this receipt open 9-18 PLATFORM 4B exit gate A22 "
    "Best before 2026-03-14 net weight 250 g made in Portugal do not bend fragile"
)
WORDS = TEXT.split()
MEAN = np.array((0.485, 0.456, 0.406), np.float32).reshape(3, 1, 1)
SPREAD = np.array((0.229, 0.224, 0.225), np.float32).reshape(3, 1, 1)
RATE = 16_000
CHUNK, CONTEXT = 512, 64
"""Samples of speech that silero-vad takes at once, and those before that it sees again."""
BEFORE = "before.onnx"
"""Beside a model, the one that its inputs come from."""
LENGTH, VOCABULARY = 32, 1000
"""How many ids a text has, and how many there are."""


def text_lines(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return single lines of text, 48 pixels high: `x` of shape (1, 3, 48, 320)."""
    return [{"x": written_text(rng, height=48, width=320, lines=1)[None]} for _ in range(count)]


def text_crops(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return crops of a page: `x` of shape (1, 3, 160, 160)."""
    return [{"x": written_text(rng, height=160, width=160, lines=4)[None]} for _ in range(count)]


def text_pages(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return pages of text: `x` of shape (1, 3, 640, 640)."""
    return [{"x": written_text(rng, height=640, width=640, lines=12)[None]} for _ in range(count)]


def text_directions(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return lines of text, every other one upside down: `x` of shape (1, 3, 48, 192)."""
    lines = [written_text(rng, height=48, width=192, lines=1) for _ in range(count)]
    return [
        {"x": np.ascontiguousarray(line[:, ::-1, ::-1] if place % 2 else line)[None]}
        for place, line in enumerate(lines)
    ]


def pictures(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return pictures of shades and edges, normalized as for ImageNet: (1, 3, 64, 64)."""
    return [{"image": ((_picture(rng, 64) - MEAN) / SPREAD)[None]} for _ in range(count)]


def speech(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return chunks of speech-like sound, each with the state that the model is in by then."""
    sound = made_sound(rng, seconds=4)
    run, state = plain(model), np.zeros((2, 1, 128), np.float32)
    samples: list[Sample] = []
    for begin in range(CONTEXT, len(sound) - CHUNK, CHUNK):
        chunk = sound[None, begin - CONTEXT : begin + CHUNK]
        samples.append({"input": chunk, "state": state, "sr": np.array(RATE, np.int64)})
        state = run(samples[-1])[1]
    picked = rng.choice(np.arange(8, len(samples)), count, replace=False)
    return [samples[place] for place in sorted(picked)]


def loud_speech(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return two seconds of sound in 16-bit steps: `input` of shape (1, 32000)."""
    return [{"input": made_sound(rng, seconds=2)[None] * 32767} for _ in range(count)]


def mel_windows(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return windows of mel spectra as openWakeWord scales them: (1, 76, 32, 1)."""
    run = plain(model.with_name(BEFORE))
    spectra = [run(sound)[0].reshape(-1, 32) / 10 + 2 for sound in loud_speech(rng, model, count)]
    return [{"input_1": each[None, 20:96, :, None].astype(np.float32)} for each in spectra]


def waveforms(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return two seconds of sound: `waveforms` of shape (1, 32000) and their lengths."""
    length = np.array([2 * RATE], np.int64)
    return [
        {"waveforms": made_sound(rng, seconds=2)[None], "waveforms_lens": length}
        for _ in range(count)
    ]


def log_mel(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return eight seconds as Whisper's features: `input_features` of shape (1, 80, 800)."""
    run, length = plain(model.with_name(BEFORE)), np.array([8 * RATE], np.int64)
    sounds = [made_sound(rng, seconds=8)[None] for _ in range(count)]
    found = [run({"waveforms": each, "waveforms_lens": length})[0] for each in sounds]
    return [{"input_features": np.ascontiguousarray(each[:, :, :800])} for each in found]


def notes(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return two seconds of plucked notes at 22,050 Hz: (1, 43844, 1)."""
    made: list[Sample] = []
    for _ in range(count):
        time = np.arange(43_844) / 22_050
        sound = rng.normal(0, 0.002, len(time))
        for _ in range(8):
            after = np.maximum(time - rng.uniform(0, 1.7), 0)
            pitch = 440 * 2 ** (rng.integers(-24, 24) / 12)
            tone = sum(np.sin(2 * np.pi * n * pitch * after) / n**1.5 for n in range(1, 7))
            sound += 0.1 * tone * np.exp(-4 * after)
        made.append({"serving_default_input_2:0": sound.astype(np.float32)[None, :, None]})
    return made


def turned_pages(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return pages turned by quarters, normalized as for ImageNet: `x` of (1, 3, 224, 224)."""
    pages = (_page(rng, 224, 224, lines=8) for _ in range(count))
    return [
        {"x": np.ascontiguousarray(np.rot90(page, place % 4, (1, 2)))[None]}
        for place, page in enumerate(pages)
    ]


def large_pages(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return pages normalized as for ImageNet: `image` of shape (1, 3, 800, 608)."""
    return [{"image": _page(rng, 800, 608, lines=20)[None]} for _ in range(count)]


def photographs(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return pictures of 0 to 255, blue first, less their means: (1, 224, 224, 3)."""
    mean = np.array((104, 117, 123), np.float32)
    shown = (_picture(rng, 224).transpose(1, 2, 0)[None] for _ in range(count))
    return [{"input:0": each[..., ::-1] * 255 - mean} for each in shown]


def yolo_pictures(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return pictures of 0 to 1: `images` of shape (1, 3, 320, 320)."""
    return [{"images": _picture(rng, 320)[None]} for _ in range(count)]


def yolox_pictures(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return pictures of 0 to 255: `images` of shape (1, 3, 416, 416)."""
    return [{"images": _picture(rng, 416)[None] * 255} for _ in range(count)]


def letters(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return letters as floats: `input_1` of shape (1, 80)."""
    return [{"input_1": rng.integers(1, 40, (1, 80)).astype(np.float32)} for _ in range(count)]


def letters_and_marks(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return letters, marks that are not known, and how many there are: (1, 60)."""
    length, none = np.array([60], np.int64), np.zeros((1, 60), np.int64)
    return [
        {
            "char_inputs": rng.integers(1, 40, (1, 60)),
            "diac_inputs": none,
            "input_lengths": length,
        }
        for _ in range(count)
    ]


def files(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return beginnings and ends of text files as magika reads them: `bytes` of (1, 2048)."""
    makers = (_prose, _program, _table, _markup)
    samples: list[Sample] = []
    for place in range(count):
        raw = makers[place % len(makers)](rng).encode().strip()
        begin, end = raw[:1024], raw[-1024:]
        pad = [256] * (1024 - len(begin))
        samples.append({"bytes": np.array([[*begin, *pad, *pad, *end]], np.int32)})
    return samples


def ids(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return ids, few of them often, as words in a text: `ids` of shape (1, LENGTH)."""
    shares = 1 / np.arange(1, VOCABULARY + 1)
    drawn = rng.choice(VOCABULARY, (count, 1, LENGTH), p=shares / shares.sum())
    return [{"ids": each.astype(np.int64)} for each in drawn]


def tokens(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return steps of a decoder, each with the keys and values that it has kept by then.

    Before the model is there, the one sample has shapes alone.
    """
    run, samples = plain(model) if model.exists() else None, list[Sample]()
    for place, one in enumerate(ids(rng, model, count)):
        keys = values = np.zeros((4, 1, 4, 0, 64), np.float32)
        sample: Sample = {}
        for at, token in enumerate(one["ids"][0, : 8 + place % (LENGTH - 8)]):
            step = {"ids": token[None, None], "place": np.array([at])}
            sample = {**step, "keys": keys, "values": values}
            if run is not None:
                _, keys, values = run(sample)
        samples.append(sample)
    return samples


def latents(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return latents of noise, each with a timestep: `latent` (1, 4, 32, 32), `t` (1,)."""
    return [
        {
            "latent": rng.standard_normal((1, 4, 32, 32), np.float32),
            "t": np.array([rng.integers(1000)], np.float32),
        }
        for _ in range(count)
    ]


def characters(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return pictures of a few characters, of 0 to 255: `images` of shape (1, 3, 416, 416)."""
    from PIL import Image, ImageDraw, ImageFont

    samples: list[Sample] = []
    for _ in range(count):
        shown = Image.fromarray(
            (_picture(rng, 416) * 90 + 150).astype(np.uint8).transpose(1, 2, 0)
        )
        draw = ImageDraw.Draw(shown)
        for place in range(5):
            where = 20.0 + 75 * place, float(rng.integers(40, 300))
            font = ImageFont.load_default(size=float(rng.integers(50, 75)))
            letter = str(rng.choice(list("ABDEGHKMNPRSTXYZ2345689")))
            draw.text(where, letter, fill=tuple(rng.integers(0, 80, 3).tolist()), font=font)
        pixels = np.asarray(shown, np.float32).transpose(2, 0, 1)
        samples.append({"images": np.ascontiguousarray(pixels)[None]})
    return samples


def reordered(rng: Rng, samples: list[Sample], count: int) -> list[Sample]:
    """Return tokenized sentences with their words in another order."""
    made: list[Sample] = []
    for place in range(count):
        sample = samples[place % len(samples)]
        words = sample["input_ids"].copy()
        inner = words[0, 1 : int(sample["attention_mask"].sum()) - 1]
        inner[:] = rng.permutation(inner)
        made.append({**sample, "input_ids": words})
    return made


def written_text(rng: Rng, *, height: int, width: int, lines: int) -> Floats:
    """Return text on paper with some noise, in [-1, 1], shape (3, height, width)."""
    from PIL import Image, ImageDraw, ImageFont

    paper, ink = (tuple(int(x) for x in rng.integers(*ends, 3)) for ends in ((190, 256), (0, 90)))
    page = Image.new("RGB", (width, height), paper)
    draw = ImageDraw.Draw(page)
    step = height // lines
    for line in range(lines):
        font = ImageFont.load_default(size=step * rng.uniform(0.5, 0.72))
        words = " ".join(rng.choice(WORDS, 8))
        draw.text(
            (float(rng.integers(2, 12)), line * step + step * 0.1), words, fill=ink, font=font
        )
    pixels = np.asarray(page, np.float32) + rng.normal(0, 4, (height, width, 3))
    return np.ascontiguousarray(
        (pixels.clip(0, 255) / 127.5 - 1).transpose(2, 0, 1), dtype=np.float32
    )


def _page(rng: Rng, height: int, width: int, *, lines: int) -> Floats:
    """Return a page, normalized as for ImageNet, shape (3, height, width)."""
    page = written_text(rng, height=height, width=width, lines=lines)
    return np.ascontiguousarray((page / 2 + 0.5 - MEAN) / SPREAD)


def _picture(rng: Rng, side: int) -> Floats:
    """Return waves and rectangles in [0, 1], shape (3, side, side)."""
    y, x = np.mgrid[0:side, 0:side] / side
    picture = np.full((3, side, side), 0.5)
    for _ in range(6):
        wave = np.sin(2 * np.pi * (x * rng.normal(0, 4) + y * rng.normal(0, 4) + rng.random()))
        picture += 0.1 * rng.normal(0, 1, (3, 1, 1)) * wave
    for _ in range(5):
        top, left = rng.integers(0, side * 3 // 4, 2)
        tall, wide = rng.integers(side // 8, side // 2, 2)
        picture[:, top : top + tall, left : left + wide] = rng.random((3, 1, 1))
    picture += rng.normal(0, 0.02, picture.shape)
    return picture.clip(0, 1).astype(np.float32)


def made_sound(rng: Rng, *, seconds: int) -> Floats:
    """Return a voice of gliding pitch and formants, in syllables, over noise."""
    time = np.arange(seconds * RATE) / RATE
    pitch = 120 + 30 * np.sin(2 * np.pi * 0.7 * time + rng.uniform(0, 6)) + rng.uniform(-20, 60)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    first = 500 + 250 * np.sin(2 * np.pi * 2.1 * time + rng.uniform(0, 6))
    voice = np.zeros_like(time)
    for harmonic in range(1, 25):
        height = harmonic * pitch
        peaks = [np.exp(-(((height - f) / 150) ** 2)) for f in (first, 3 * first, 2700)]
        voice += (0.02 + sum(peaks)) * np.sin(harmonic * phase)
    syllables = np.clip(np.sin(2 * np.pi * 3 * time) + 0.4 * np.sin(2 * np.pi * 0.5 * time), 0, 1)
    sound = 0.08 * voice * syllables + rng.normal(0, 0.005, len(time))
    return sound.clip(-1, 1).astype(np.float32)


def _prose(rng: Rng) -> str:
    return ". ".join(" ".join(rng.choice(WORDS, 9)) for _ in range(30))


def _program(rng: Rng) -> str:
    names = [word.lower() for word in WORDS if word.isalpha()]
    body = [
        f"def {rng.choice(names)}({rng.choice(names)}):\n    return {rng.integers(99)} + x\n\n"
        for _ in range(25)
    ]
    return "import os\nimport sys\n\n\n" + "\n".join(body)


def _table(rng: Rng) -> str:
    rows = (",".join(f"{x:.3f}" for x in rng.normal(0, 9, 6)) for _ in range(60))
    return "time,a,b,c,d,e\n" + "\n".join(rows)


def _markup(rng: Rng) -> str:
    items = "".join(f"<li>{' '.join(rng.choice(WORDS, 4))}</li>\n" for _ in range(40))
    return f"<!DOCTYPE html>\n<html><head><title>list</title></head><body><ul>{items}</ul></body>"
