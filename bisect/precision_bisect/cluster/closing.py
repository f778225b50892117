"""Clearing the workers once the driver has left the cluster, however that came about."""

from contextlib import suppress
from typing import TYPE_CHECKING

from distributed import SchedulerPlugin

if TYPE_CHECKING:
    from distributed import Scheduler


class ClosePlugin(SchedulerPlugin):
    """Takes the plugins of a run off the workers when its client is gone, even killed.

    `key` is what their names begin with.
    """

    def __init__(self, key: str, client: str) -> None:
        self.name = f"{key}-leaving"
        self._key = key
        self._client = client

    def remove_client(self, scheduler: "Scheduler", client: str) -> None:
        """Called by the scheduler when a client has left."""
        if client == self._client:
            scheduler.loop.add_callback(self._clear, scheduler)

    async def _clear(self, scheduler: "Scheduler") -> None:
        """Remove the newest first: they use what the older ones have."""
        for name in reversed([*scheduler.worker_plugins]):
            if name.startswith(self._key):
                with suppress(Exception):
                    await scheduler.unregister_worker_plugin(None, name=name)
        with suppress(ValueError):
            scheduler.remove_plugin(self.name)
