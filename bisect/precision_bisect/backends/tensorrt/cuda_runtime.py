"""Finds CUDA's runtime library where Polygraphy's runners do not find it by themselves."""

import os
import sys
from pathlib import Path

from precision_bisect.errors import RefusedError

_SEARCHED = "LD_LIBRARY_PATH"


def load_cuda_runtime() -> None:
    """Make Polygraphy load the library, for the rest of the process.

    Polygraphy looks into the search path and into pip's packages for CUDA 12; those for CUDA 13
    are laid out differently. Raises RefusedError where there is none.
    """
    from polygraphy import cuda

    before = os.environ.get(_SEARCHED)
    folders = [before] if before else []
    folders += [str(f) for entry in sys.path for f in Path(entry).glob("nvidia/cu[0-9]*/lib")]
    os.environ[_SEARCHED] = os.pathsep.join(folders)
    try:
        cuda.wrapper()
    except OSError as error:
        raise RefusedError(
            f"Polygraphy cannot load CUDA's runtime library: {error}",
            f"put the folder of libcudart.so on {_SEARCHED}",
        ) from error
    finally:
        # Processes started from here must not search what this one needed once.
        del os.environ[_SEARCHED]
        if before is not None:
            os.environ[_SEARCHED] = before
