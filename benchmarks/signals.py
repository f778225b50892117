"""Random signals at random moments of many kinds of runs, which must end with the same results.

    python benchmarks/signals.py --signals 200 --seed 0 --out benchmarks/results/signals.json

Each run is undisturbed once. Then it is begun afresh again and again, and meets SIGINT, SIGTERM or
SIGKILL at a moment drawn from its duration; `--resume` goes on, with another signal half of the
time, until it ends by itself. Its results must then be those of the undisturbed run, but for
seconds and counts of trials that were cut off. What meets SIGINT or SIGTERM must end by 130, by
the signal itself (143 in a shell) or as if nothing had been asked, without a traceback. Whatever
met it, no process, temporary file or file of another name may be left. `remote` needs root, for
an sshd of its own, and `torch` the group `models` of pyproject.toml. Exit code 1 tells that
something differed.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "tests"))

import fused_models
import ladder_model
import tiny
from faults.subject import left_over
from loopback import Boards, boards, lacks
from patience import comes

COMMAND = (sys.executable, "-m", "precision_bisect")
QUICK = ("--inputs", "inputs.npz", "--threads", "1", "--tol", "1e-2", "--out", "run")
EMULATED = (*QUICK, "--backend", "emulated")
TINY = (*COMMAND, "tiny.onnx", *EMULATED)
API = """
import sys
import precision_bisect

try:
    result = precision_bisect.find(
        "tiny.onnx", inputs="inputs.npz", tol=1e-2, threads=1, out="run", resume=True,
        backend="emulated",
    )
except precision_bisect.SearchInterrupted as interrupt:
    raise SystemExit(130)
except KeyboardInterrupt:
    raise SystemExit(130)
"""
TORCH = f"""
import signal, sys
sys.path.append({str(Path(__file__).parents[1] / "tests")!r})
import precision_bisect.torch, torch, torch_networks

answered = [signal.getsignal(number) for number in signal.valid_signals()]
try:
    precision_bisect.torch.find(
        torch_networks.network("detector"),
        torch.from_numpy(torch_networks.samples("detector")[0]["x"]),
        folder="torch", threads=1, backend="emulated", resume=True,
    )
except precision_bisect.SearchInterrupted as interrupt:
    code = 130 if interrupt.result.out else 1
except KeyboardInterrupt:
    code = 130
else:
    code = 0
if answered != [signal.getsignal(number) for number in signal.valid_signals()]:
    code = 1
raise SystemExit(code)
"""
TORCH_CACHE = {"TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / "torch-cache")}
"""PyTorch leaves it in the folder of temporary files."""
JOBS = """
[defaults]
inputs = "inputs.npz"
threads = 1
tol = 1e-2
backend = "emulated"
[[job]]
name = "one"
model = "tiny.onnx"
[[job]]
name = "two"
model = "tiny.onnx"
strategy = "ddmin"
"""
_LADDER = "ladder.onnx --inputs ladder.npz --threads 1 --tol 0.1 --out run --backend emulated"
_HELD_OUT = (
    "tiny.onnx --inputs more --holdout 2 --threads 1 --tol 1e-2 --out run --backend emulated"
)
_FUSED = "fused.onnx --inputs fused.npz --threads 1 --tol 2e-2 --out run --backend emulated"
_KEEPS_NOTHING = "tiny.onnx --inputs inputs.npz --threads 1 --tol 1e3 --copies 0 --out run"
"""Few builds, each a call of another machine."""
_EXPLAIN = "explain tiny.onnx --inputs inputs.npz --threads 1 --tol 1e-2 --json"
KINDS: Mapping[str, Sequence[str]] = {
    "guided": TINY,
    "ddmin": (*TINY, "--strategy", "ddmin"),
    "workers": (*TINY, "--workers", "2"),
    "children": (*TINY, "--isolate", "always"),
    "targets": (*TINY, "--target", "all"),
    "held out": (*COMMAND, *_HELD_OUT.split()),
    "ladder": (*COMMAND, *_LADDER.split(), "--ladder", "int8,fp16,fp32"),
    "batch": (*COMMAND, "batch", "jobs.toml", "--out", "batch"),
    "API": (sys.executable, "-c", API),
    "torch": (sys.executable, "-c", TORCH),
    "remote": (*COMMAND, "tiny.onnx", *QUICK, "--copies", "0", "--certify", "none"),
    "remote that keeps nothing": (*COMMAND, *_KEEPS_NOTHING.split()),
    "fused": (*COMMAND, *_FUSED.split()),
    "target": (*COMMAND, "target", "done", "--write", "board"),
    "explain": (*COMMAND, *_EXPLAIN.split()),
    "verify": (*COMMAND, "verify", "done", "--json"),
}
BEGUN_AGAIN = ("target", "explain", "verify")
"""Commands without --resume, which print their results."""
LEFT_OUT = frozenset(
    ("wall_s", "trials", "evaluations", "builds", "unresolved", "fingerprint", "costs", "speed")
)
"""Keys of a result that tell of effort or time, or of both."""


def prepare(folder: Path, kind: str) -> None:
    """Write the models, inputs and jobs of every kind, and a finished run for what needs one."""
    (folder / "temp").mkdir()
    fused_models.saved(fused_models.ALONE, folder).rename(folder / "fused.onnx")
    np.savez(folder / "fused.npz", x=fused_models.samples()[0]["x"])
    tiny.write_with_samples(folder)
    ladder_model.write(folder).rename(folder / "ladder.onnx")
    np.savez(folder / "ladder.npz", x=ladder_model.samples()[0]["x"])
    (folder / "more").mkdir()
    for number, sample in enumerate(tiny.samples(6)):
        np.savez(folder / "more" / f"{number}.npz", x=sample["x"])
    (folder / "jobs.toml").write_text(JOBS)
    if kind in BEGUN_AGAIN:
        code, said = run([{"run": "done"}.get(word, word) for word in TINY], folder)
        assert code == 0, said


def results(folder: Path) -> Mapping[str, Any]:
    """Return what the run folders say, without what may differ, and the names of all files."""
    files = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*"))]
    return {"files": [name for name in files if not name.startswith("temp")]} | {
        str(path.relative_to(folder)): _steady(json.loads(path.read_text()))
        for pattern in ("result.json", "verify.json", "points.json")
        for path in sorted(folder.rglob(pattern))
    }


def _steady(value: Any) -> Any:
    """Return a result without seconds and counts."""
    if isinstance(value, dict):
        return {key: _steady(inner) for key, inner in value.items() if key not in LEFT_OUT}
    if isinstance(value, list):
        return [_steady(inner) for inner in value]
    return value


def run(
    words: Sequence[str], folder: Path, number: signal.Signals | None = None, after_s: float = 0.0
) -> tuple[int, str]:
    """Run a command, with a signal after so long; return how it ended, and its last words."""
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(
            words,
            cwd=folder,
            stdout=said,
            stderr=said,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(folder / "temp"), **TORCH_CACHE},
        )
        if number is not None:
            with suppress(subprocess.TimeoutExpired):
                child.wait(after_s)
            if child.poll() is None:
                os.kill(child.pid, number)
        child.wait(600)
        said.seek(0)
        return child.returncode, said.read()


def disturbed(
    kind: str, words: Sequence[str], folder: Path, draw: random.Random, took_s: float
) -> tuple[Counter[str], list[str], str]:
    """Run a command that signals meet until it ends; count them, and list what was wrong.

    Returns what its last run said, too.
    """
    met, faults = Counter[str](), list[str]()
    python = words[1] == "-c"  # where Ctrl-C may end what is imported before all else
    resumed = [] if python or kind in BEGUN_AGAIN else ["--resume"]
    again: Sequence[str] = words
    while True:
        kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
        number = draw.choice(kinds) if not met or draw.random() < 0.5 else None
        code, said = run(again, folder, number, draw.uniform(0.0, took_s))
        ends = {0, 130} | ({-number} if number is not None else set())
        if number is None:
            ends = {0}
        else:
            met[number.name] += 1
        starts = "import the site module" in said  # Python itself, before it knows of a program
        if not starts and (code not in ends or ("Traceback" in said and not python)):
            faults.append(f"exit code {code}: {said[-400:]}")
        faults += [f"left by {number and number.name}: {text}" for text in left_over(folder)]
        if kind == "target" and (folder / "board" / "points.json").exists():
            code = 0  # the signal came when all was written
        if number is None or (code == 0):
            return met, faults, said
        again = [*words, *resumed]


def differences(one: Any, other: Any, place: str = "") -> list[str]:
    """Return where two results differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            text
            for key in one.keys() | other.keys()
            for text in differences(one.get(key), other.get(key), f"{place}.{key}")
        ]
    return [] if one == other else [f"{place}: {str(one)[:150]} then {str(other)[:150]}"]


def study(
    kind: str, words: Sequence[str], signals: int, seed: int, hosts: Boards | None
) -> dict[str, Any]:
    """Let so many signals meet a kind of run, which leaves nothing on hosts.

    Returns counts and faults.
    """
    draw, met, faults = random.Random(f"{kind}/{seed}"), Counter[str](), list[str]()
    runs, temporary = 0, tempfile.TemporaryDirectory
    with temporary() as prepared, temporary() as text:
        prepare(Path(prepared), kind)
        folder = Path(shutil.copytree(prepared, text, dirs_exist_ok=True))
        begun = time.monotonic()
        code, said = run(words, folder)
        took_s = time.monotonic() - begun
        if code:
            return {"signals": 0, "faults": [f"undisturbed: exit code {code}: {said[-400:]}"]}
        wanted = {**results(folder), "said": said if kind == "explain" else ""}
        while met.total() < signals:
            with temporary() as text:
                folder = Path(shutil.copytree(prepared, text, dirs_exist_ok=True))
                more, wrong, said = disturbed(kind, words, folder, draw, took_s)
                ended = {**results(folder), "said": said if kind == "explain" else ""}
                wrong += differences(wanted, ended)
                if hosts is not None and not comes(hosts.clear):
                    wrong.append(f"a host is not clear: {hosts.left()}")
                runs, met, faults = runs + 1, met + more, [*faults, *wrong]
                for line in wrong:
                    print(f"{kind}, run {runs}, {dict(more)}: {line}", flush=True)
    return {"runs": runs, "signals": met.total(), **met, "faults": faults}


def main() -> int:
    """Study every kind, write the counts, and tell whether all was well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--signals", type=int, default=200, help="of all kinds together")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    names = asked.kinds.split(",")
    counts: dict[str, Any] = {}
    for kind in names:
        words, each = KINDS[kind], -(-asked.signals // len(names))
        hosts = None
        with ExitStack() as open_:
            if kind.startswith("remote"):
                if why := lacks():
                    counts[kind] = {"signals": 0, "faults": [], "left_out": why}
                    continue
                hosts = open_.enter_context(boards("one"))
                words = [*words, *hosts.flags()]
            counts[kind] = study(kind, words, each, asked.seed, hosts)
        print(kind, {key: row for key, row in counts[kind].items() if key != "faults"}, flush=True)
        if asked.out:
            asked.out.write_text(
                json.dumps({"seed": asked.seed, "kinds": counts}, indent=1) + "\n"
            )
    faults = sum(len(row["faults"]) for row in counts.values())
    print(f"{sum(row['signals'] for row in counts.values())} signals, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
