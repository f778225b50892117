"""Inputs, folders, settings, job files and command lines, changed by what they are made of."""

import json
import os
import random
import shutil
import sqlite3
import warnings
import zipfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import fuzz_models
import numpy as np
import onnx
from fuzz_models import FIGURES, INTEGERS, bytes_changed

HOSTILE = (
    "",
    "x" * 400,
    "\0",
    "\x1b[31m",
    "\u202e",
    "../out",
    "/etc/passwd",
    "-",
    "é",
    "nan",
    "\udcff",
)
_QUICK = ["--synthetic", "1", "--threads", "1", "--copies", "0", "--max-trials", "3"]
_STRICT = ["--tol", "1e-12"]
"""Nothing passes, so no answer is re-checked in a fresh process, which takes long."""
_SHAPES = ((1, 8), (8,), (0, 8), (1, 8, 1), (2**31, 2**31), (-1, 8), (2**20, 2**12), ())
_DTYPES = (
    "<f4",
    "<f8",
    "|S0",
    "|O",
    "<U0",
    "<i8",
    "|b1",
    "<c8",
    "<f2",
    ">f4",
    "|V4",
    "[('a','<f4')]",
)


def inputs(rng: random.Random, folder: Path) -> list[str]:
    """Write samples that something is wrong with."""
    onnx.save(fuzz_models.plain(), folder / "m.onnx")
    flag = rng.choice(("--inputs", "--inputs", "--inputs", "--reference"))
    given = rng.choice((_npz, _npz, _npy, _json))(rng, folder)
    if flag == "--reference":
        np.savez(folder / "good.npz", x=np.ones((1, 8), np.float32))
        return [
            "m.onnx",
            "--out",
            "run",
            "--inputs",
            "good.npz",
            flag,
            given,
            *_QUICK[2:],
            *_STRICT,
        ]
    return ["m.onnx", "--out", "run", flag, given, *_QUICK[2:], *_STRICT]


def _header(rng: random.Random) -> bytes:
    """Return an .npy file, of a header that may lie."""
    dtype = "<f4" if rng.random() < 0.6 else rng.choice(_DTYPES)
    shape: tuple[int, ...] = (1, 8) if rng.random() < 0.6 else rng.choice(_SHAPES)
    said = dtype if dtype.startswith("[") else repr(dtype)
    text = f"{{'descr': {said}, 'fortran_order': {rng.random() < 0.1}, 'shape': {shape}, }}"
    line = text.encode().ljust(117) + b"\n"
    data = np.linspace(0, 1, 8, dtype=np.float32).tobytes() * rng.choice((0, 1, 1, 1, 1, 1, 4))
    found = b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line + data
    return bytes_changed(rng, found) if rng.random() < 0.3 else found


def _npz(rng: random.Random, folder: Path) -> str:
    odd: tuple[list[str], ...] = (["y"], ["x", "y"], ["x", "x"], [], ["z" * 300], ["../x"])
    names = ["x"] if rng.random() < 0.6 else rng.choice(odd)
    with warnings.catch_warnings(), zipfile.ZipFile(folder / "in.npz", "w") as archive:
        warnings.simplefilter("ignore")  # zipfile on a name that comes twice
        for name in names:
            archive.writestr(f"{name}.npy" if rng.random() < 0.9 else name, _header(rng))
    if rng.random() < 0.4:
        data = (folder / "in.npz").read_bytes()
        (folder / "in.npz").write_bytes(bytes_changed(rng, data))
    return "in.npz"


def _npy(rng: random.Random, folder: Path) -> str:
    (folder / "in").mkdir()
    for number in range(rng.choice((0, 1, 2))):
        (folder / "in" / f"x_{number}.npy").write_bytes(_header(rng))
    return "in"


def _json(rng: random.Random, folder: Path) -> str:
    array = {
        "array": "k05VTVBZ",
        "polygraphy_class": rng.choice(("ndarray", "FormattedArray", "Nope")),
    }
    value: Any = rng.choice(
        ([{"x": array}], {"x": array}, [], [[]], "x", [{"x": [1.0] * 8}], {"lst": [array]})
    )
    text = json.dumps(changed(rng, value))
    (folder / "in.json").write_bytes(
        bytes_changed(rng, text.encode()) if rng.random() < 0.5 else text.encode()
    )
    return "in.json"


def changed(rng: random.Random, value: Any) -> Any:
    """Return a JSON value with one place of it changed."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {each: inner for each, inner in value.items() if each != key}
        return {**value, key: changed(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        return [changed(rng, each) if n == place else each for n, each in enumerate(value)]
    deep: Any = []
    for _ in range(rng.choice((3, 100))):
        deep = [deep]
    choices: tuple[Any, ...] = (
        None,
        True,
        [],
        {},
        deep,
        "",
        10**400,
        *HOSTILE[:-1],
        *INTEGERS,
        *FIGURES,
    )
    return rng.choice(choices)


class Folders:
    """Changed copies of one finished run, `finished`, of the model `m.onnx` beside it."""

    def __init__(self, finished: Path) -> None:
        self._finished = finished

    def write(self, rng: random.Random, folder: Path) -> list[str]:
        """Write a run folder that somebody has been at, and return a command that reads it."""
        shutil.copytree(self._finished, folder / "run")
        shutil.copy(self._finished.parent / "m.onnx", folder / "m.onnx")
        outside = folder.parent / "outside"
        outside.mkdir(exist_ok=True)
        for _ in range(rng.choice((1, 1, 2))):
            self._change(rng, folder / "run", outside)
        commands = (
            *(["show", "run", "-v"], ["explain", "run", "-v"], ["target", "run", "--write", "t"]),
            *(["status", "run"], ["status", "run", "--json"], ["report", "run"], ["show", "run"]),
            *(["compare", "run", "run"], ["explain", "run"], ["explain", "run", "--json"]),
            *(["export", "m.onnx", "--plan", "run"], ["verify", "m.onnx", "--plan", "run"]),
            ["m.onnx", "--out", "run", "--resume", *_QUICK, "--seed", "0"],
            ["m.onnx", "--out", "new", "--baseline", "run", *_QUICK, *_STRICT],
            ["doctor", "run", "--bundle", "b.tar.gz"],
        )
        # To verify imports TensorRT-RTX.
        weights = [1 if each[0] in ("verify", "doctor") else 8 for each in commands]
        return list(rng.choices(commands, weights)[0])

    def _change(self, rng: random.Random, run: Path, outside: Path) -> None:
        files = sorted(path for path in run.rglob("*") if path.is_file())
        path = rng.choice(files)
        if rng.random() < 0.3:
            path = run / "ledger.sqlite"
        if rng.random() < 0.3:
            path = run / "result.json"
        what = rng.random()
        if not path.is_file() or path.is_symlink():
            return
        if what < 0.15:
            path.unlink()
            target = rng.choice(("folder", "pipe", "link", "nowhere", "gone"))
            if target == "folder":
                path.mkdir()
            elif target == "pipe":
                os.mkfifo(path)
            elif target == "link":
                (outside / "file").write_text("precious")
                path.symlink_to(outside / "file")
            elif target == "nowhere":
                path.symlink_to(outside / "made")
        elif path.suffix == ".sqlite" and what < 0.7:
            _change_ledger(rng, path)
        elif path.suffix == ".json" and what < 0.8:
            _change_json(rng, path)
        else:
            path.write_bytes(bytes_changed(rng, path.read_bytes()))


def _change_json(rng: random.Random, path: Path) -> None:
    """Change one place of a JSON file; one that is broken already stays so."""
    with suppress(ValueError):
        path.write_text(json.dumps(changed(rng, json.loads(path.read_text(errors="replace")))))


def _change_ledger(rng: random.Random, path: Path) -> None:
    """Change one column of a trial or of the header, or a table itself."""
    values: tuple[Any, ...] = (None, "", b"\xff\xfe", "nan", *HOSTILE[:4], *INTEGERS[:8], 1e308)
    with suppress(sqlite3.Error, ValueError), closing(sqlite3.connect(path)) as ledger, ledger:
        ledger.execute("PRAGMA journal_mode=DELETE")
        if rng.random() < 0.1:
            ledger.execute(rng.choice(("DROP TABLE trials", "DELETE FROM header", "VACUUM")))
            return
        table = rng.choice(("trials", "header"))
        columns = [row[1] for row in ledger.execute(f"PRAGMA table_info({table})")]
        # A change before may have dropped the table.
        column = rng.choice(columns or ["id"])
        sql = f"UPDATE {table} SET {column} = ? WHERE rowid % ? = 0"
        ledger.execute(sql, (rng.choice(values), rng.choice((1, 2, 5))))


def jobs(rng: random.Random, folder: Path) -> list[str]:
    """Write a file of jobs."""
    onnx.save(fuzz_models.plain(), folder / "m.onnx")
    keys = (
        "model",
        "name",
        "out",
        "tol",
        "inputs",
        "resume",
        "max-trials",
        "low",
        "ladder",
        "json",
        "x",
    )
    lines = []
    for table in rng.choice(
        (["[[job]]"], ["[[job]]"] * 2, ["[defaults]", "[[job]]"], ["[job]"], [])
    ):
        lines.append(table)
        if rng.random() < 0.8 and "job" in table:
            lines.append('model = "m.onnx"')
        for key in rng.sample(keys, rng.randrange(4)):
            lines.append(f"{key} = {_toml(rng)}")
    text = "\n".join(lines).encode("utf-8", errors="replace")
    (folder / "jobs.toml").write_bytes(bytes_changed(rng, text) if rng.random() < 0.3 else text)
    how = rng.choice((["--dry-run"], ["--dry-run", "--json"], ["--dry-run", "--out", "batch"]))
    return ["batch", "jobs.toml", *how]


def settings(rng: random.Random, folder: Path) -> list[str]:
    """Write a configuration file, which is named or found."""
    from precision_bisect.commandline.arguments.run_flags import run_parser

    onnx.save(fuzz_models.plain(), folder / "m.onnx")
    names = [each.option_strings[-1] for each in run_parser()._actions if each.option_strings]
    keys = [name.removeprefix("--") for name in names if name not in _LEFT_OUT]
    table, name = rng.choice(
        (("", "precision-bisect.toml"), ("", "own.toml"), ("[tool.precision-bisect]\n",) * 2)
    )
    name = "pyproject.toml" if table else name
    lines = [f"{key} = {_toml(rng)}" for key in rng.sample(keys, rng.randrange(4))]
    text = (table + "\n".join(lines)).encode("utf-8", errors="replace")
    (folder / name).write_bytes(bytes_changed(rng, text) if rng.random() < 0.3 else text)
    named = [] if rng.random() < 0.3 else ["--config", name]
    return ["m.onnx", *_QUICK, "--backend", "emulated", *_STRICT, *named]


class Batches:
    """Changed copies of a finished batch; its job ended well."""

    def __init__(self, finished: Path) -> None:
        self._finished = finished.parent

    def write(self, rng: random.Random, folder: Path) -> list[str]:
        """Write a batch that somebody has been at, and return a command that reads it."""
        for name in ("m.onnx", "jobs.toml"):
            shutil.copy2(self._finished / name, folder / name)
        shutil.copytree(self._finished / "batch", folder / "batch")
        path = folder / rng.choice(("batch/batch.json", "batch/one/result.json"))
        for _ in range(rng.choice((1, 1, 2))):
            _change_json(rng, path)
        # A job that is not in the batch before cannot be read.
        with (folder / "jobs.toml").open("a") as jobs_file:
            jobs_file.write(f'[[job]]\nmodel = "absent.onnx"\nname = {_toml(rng)}\n')
        again = "batch jobs.toml --out batch --resume --github"
        commands = (
            "status batch",
            "show batch",
            "show batch --json",
            "compare batch batch",
            again,
        )
        return rng.choices(commands, (8, 8, 8, 8, 1))[0].split()


def _toml(rng: random.Random) -> str:
    return rng.choice(
        (
            *("1", "-1", "true", "1e400", "nan", "[]", "{}", '["a", 1]', "[[[]]]", "1979-05-27"),
            *(
                '"m.onnx"',
                '"../m.onnx"',
                '"/dev/zero"',
                '"-"',
                '"\\u0000"',
                '"\\u202e"',
                "9" * 5000,
            ),
        )
    )


def flags(rng: random.Random, folder: Path) -> list[str]:
    """Return a command line of flags that exist, with values that fit or do not."""
    from precision_bisect.commandline.arguments.run_flags import run_parser
    from precision_bisect.commandline.commands import COMMANDS

    onnx.save(fuzz_models.plain(), folder / "m.onnx")
    np.savez(folder / "x.npz", x=np.ones((1, 8), np.float32))
    command = rng.choice(("", "", "", "", *(name for name in COMMANDS if name != "doctor")))
    parser = COMMANDS[command][0]() if command else run_parser()
    arguments = [command] if command else []
    arguments += rng.choice((["m.onnx"], ["m.onnx"], ["m.onnx"], [], [rng.choice(HOSTILE)]))
    known = [each for each in parser._actions if each.option_strings]
    for action in rng.sample(known, min(len(known), rng.choice((0, 1, 2, 3, 5)))):
        name = action.option_strings[-1]
        if name in _LEFT_OUT:
            continue
        value = _value(rng, list(action.choices or ()))
        arguments += [name] if action.nargs == 0 else [f"{name}={value}"]
    if not command:
        arguments += [*_QUICK, "--backend", "emulated", *(_STRICT if rng.random() < 0.8 else ())]
    return [each.replace("\0", "") for each in arguments]


_LEFT_OUT = (
    "--on-finish",
    "--cluster",
    "--executor",
    "--backend",
    "--workers",
    "--help",
    "--version",
    "--strategy",
)
"""What starts commands of the user's, or other machines; --strategy for Optuna's import."""


def _value(rng: random.Random, choices: list[Any]) -> str:
    if choices and rng.random() < 0.8:
        return str(rng.choice(choices))
    values = (
        *(
            "1",
            "0",
            "-1",
            "0.5",
            "1e-2",
            "nan",
            "inf",
            "1e999",
            "9" * 30,
            "x:1x8",
            "x:0",
            "y=1e-2",
        ),
        *(
            "m.onnx",
            "x.npz",
            "run",
            ".",
            "absent",
            "90s",
            "2h",
            "8G",
            "fp16,fp32",
            "int8,fp16,fp32",
        ),
        *HOSTILE[:6],
        *HOSTILE[7:10],
    )
    return rng.choice(values)
