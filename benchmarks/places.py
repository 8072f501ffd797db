"""Where the streams of a workload lie: in a folder, far away, or on a real object store server."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wrapped_storage import LatencyStorage

from segstore_ds.storage import Storage, open_storage


@dataclass(frozen=True)
class Place:
    """A folder or a bucket, opened anew in every process; pickles."""

    name: str
    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    delay_s: float = 0.0  # before every request

    @property
    def is_s3(self) -> bool:
        """Whether requests go to an S3 server."""
        return self.url.startswith("s3://")

    def open(self, folder: str) -> Storage:
        """Open a folder in it."""
        storage = open_storage(f"{self.url}/{folder}", self.options)
        return LatencyStorage(storage, self.delay_s) if self.delay_s else storage


class S3Meter:
    """Counts the requests that reach an S3 server, and delays each of them where it is sent.

    Requests that the client repeats by itself are counted as well. Of one process, and for all
    storages that it opens with the same options.
    """

    def __init__(self, storage: Storage, delay_s: float = 0.0) -> None:
        self.requests = 0
        self._delay_s = delay_s
        storage.fs.s3.meta.events.register("before-send.s3", self._before)  # type: ignore[attr-defined]

    async def _before(self, **_: Any) -> None:
        self.requests += 1
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
