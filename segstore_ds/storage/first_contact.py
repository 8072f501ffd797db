"""The first contact with an endpoint: what is waited for is said, and a dead one is given up soon.

The clients repeat refused connections for up to minutes, each in its own way. That is right for a
store that has answered before, and wrong for one that may be misspelt or down. So a process first
connects to an endpoint by itself, for ten seconds at most. How long a store may take to answer is
the clients' business alone, as is an endpoint that has answered.
"""

import asyncio
import logging
import threading
import time
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from fsspec.asyn import sync

from segstore_ds.errors import MissingObjectError

_LOG = logging.getLogger(__name__)
NOTICE_S = 2.0
PATIENCE_S = 10.0
_AGAIN_S = 0.25  # between two attempts, and two addresses of one host
_answered: set[str] = set()
_gave_up: dict[str, float] = {}  # endpoint -> when


def has_answered(endpoint: str) -> bool:
    """Tell whether an endpoint has answered in this process."""
    return endpoint in _answered


class FirstContact:
    """A block with the first call to an endpoint; a warning after two seconds says where it is.

    `answers` says that the endpoint has answered if the call succeeds.
    """

    def __init__(self, endpoint: str, *, answers: bool) -> None:
        self._endpoint, self._answers = endpoint, answers
        self._parts = urlsplit(endpoint)
        self._shown = f"{self._parts.scheme}://{self._parts.netloc.rpartition('@')[2]}"  # no secret
        self._waits_for = "an answer of"
        self._timer = threading.Timer(NOTICE_S, self._notice)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._answers and (kind is None or issubclass(kind, MissingObjectError)):
            _answered.add(self._endpoint)

    def connect(self, loop: Any) -> None:
        """Wait until the endpoint accepts a connection, unless a proxy stands before it.

        Raises:
            ConnectionError: It accepts none within ten seconds, or now, if that was so just before.
        """
        scheme, host = self._parts.scheme, self._parts.hostname or ""
        port = self._parts.port or (80 if scheme == "http" else 443)
        if {scheme, "all"} & getproxies().keys() and not proxy_bypass(host):
            return
        since = time.monotonic() - _gave_up.get(self._endpoint, -PATIENCE_S)
        patience = PATIENCE_S if since >= PATIENCE_S else _AGAIN_S
        self._waits_for = "a connection to"
        try:
            sync(loop, _connect, host, port, patience)
        except OSError as cause:
            _gave_up[self._endpoint] = time.monotonic()
            text = str(cause) or "no answer"
            raise ConnectionError(f"no connection to {self._shown}: {text}") from cause
        self._waits_for = "an answer of"

    def _notice(self) -> None:
        _LOG.warning("waiting for %s %s", self._waits_for, self._shown)


async def _connect(host: str, port: int, patience_s: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + patience_s
    while True:
        try:
            async with asyncio.timeout_at(end):
                made, _ = await loop.create_connection(
                    asyncio.Protocol, host, port, happy_eyeballs_delay=_AGAIN_S
                )
        except OSError:
            if loop.time() + _AGAIN_S >= end:
                raise
        else:
            made.close()
            return
        await asyncio.sleep(_AGAIN_S)
