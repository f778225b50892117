"""One file for the rounded weights of a large model, for all processes of a run.

A process for each worker and each setting of the library opens plans of the same model. Rounding
and writing its weights is most of what opening a model of gigabytes takes the first time.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO

import numpy as np

from precision_bisect.graphs.typed.typed_graph import TypedWeight
from precision_bisect.graphs.weights import Part
from precision_bisect.machine.plain_files import whole

_WEIGHTS, _PLACES, _LOCK = "weights.bin", "places.json", "lock"

Append = Callable[[IO[bytes], TypedWeight], Part]


class SharedWeights:
    """A weights file in a folder that several processes append to, each weight once.

    It takes the weights that lie in data files of the model, which name them in any process, and
    are in a float type. What a process that was killed had not ended is not in the list of places.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / _WEIGHTS
        self._list = folder / _PLACES

    @contextmanager
    def appending(self, append: Append) -> Iterator[Callable[[TypedWeight], Part | None]]:
        """Yield what returns the place of a weight, None for one that is not shared.

        It calls `append` with those that are new; other processes wait meanwhile. Raises OSError.
        """
        # Imported here: the emulator writes no weights.
        from filelock import FileLock

        self.file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self._list.with_name(_LOCK)), self.file.open("ab") as stream:
            known = json.loads(self._list.read_bytes()) if self._list.exists() else {}
            places, count = {key: Part(**place) for key, place in known.items()}, len(known)

            def place(weight: TypedWeight) -> Part | None:
                if (key := _key(weight)) and key not in places:
                    places[key] = append(stream, weight)
                return places.get(key)

            yield place
            if len(places) > count:
                stream.flush()
                with whole(self._list) as index:
                    listed = {key: asdict(part) for key, part in places.items()}
                    index.write(json.dumps(listed).encode())


def _key(weight: TypedWeight) -> str:
    """Return what names a weight as it is stored, in any process; "" where nothing does."""
    source = weight.source
    if not isinstance(source, np.memmap) or not source.filename or weight.quantization:
        return ""
    file = Path(source.filename).absolute()
    return json.dumps([str(file), source.offset, source.size, source.dtype.str, str(weight.dtype)])
