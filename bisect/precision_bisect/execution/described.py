"""What a backend says of itself, as plain data that passes between processes."""

from collections.abc import Mapping
from dataclasses import dataclass

from precision_bisect.layer_table import LayerName
from precision_bisect.protocols import Backend, Hasty


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a backend says of itself; see `protocols.Described` and `protocols.Hasty`.

    A backend cannot be pickled: it holds sessions and GPU memory.
    """

    name: str
    emulated: bool
    said: Mapping[str, str]
    stuck: Mapping[LayerName, str]
    hasty: bool = False

    def versions(self) -> Mapping[str, str]:
        """Return versions and device names that results depend on."""
        return self.said

    def unbuildable(self) -> Mapping[LayerName, str]:
        """Return the candidates that cannot run low, each with the reason."""
        return self.stuck


def survey(backend: Backend) -> Survey:
    """Return what the backend says of itself."""
    return Survey(
        name=backend.name,
        emulated=backend.emulated,
        said=backend.versions(),
        stuck=backend.unbuildable(),
        hasty=isinstance(backend, Hasty) and backend.hasty,
    )
