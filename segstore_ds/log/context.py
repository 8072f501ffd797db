"""What every verb on a stream needs: its log, its table status, its client, its launcher.

Verbs that read and write much have one shape: a plan on a root makes a `Job` and its rows, a
`Launch` runs the rows, here or in an engine's tasks, and one commit uses the results.
"""

import getpass
import os
import platform
import re
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self

import pyarrow as pa

from segstore_ds.format.root import Root
from segstore_ds.log.clock import Clock
from segstore_ds.log.commit import Change, Committed
from segstore_ds.log.stream_log import StreamLog
from segstore_ds.status.history import APPLICATION, Note
from segstore_ds.status.table import Slot
from segstore_ds.status.table_status import TableStatus
from segstore_ds.storage import Storage
from segstore_ds.version import __version__

CLIENT_VARIABLE = "SEGSTORE_CLIENT"
_WORD, _MOST = 60, 400  # most characters of a word in a client's name, and of the name


class Job(Protocol):
    """What all rows of a verb share; picklable, as are its rows and results."""

    def run(self, rows: Iterable[Any], /) -> Generator[Any, None, None]:
        """Run rows and yield their results in order.

        Any row may be run again, killed, or run twice at once. After a failure, or when the caller
        stops early, what no later attempt can use is deleted.
        """

    def size(self, rows: Iterable[Any], /) -> int:
        """Return the encoded bytes that rows read."""


Launch = Callable[[Job, Sequence[Any]], Generator[Any, None, None]]


def run_here(job: Job, rows: Sequence[Any]) -> Generator[Any, None, None]:
    """Run the rows of a job in this process; a `Launch`."""
    return job.run(rows)


@dataclass(frozen=True, slots=True)
class StreamContext:
    """One stream as one handle sees it; the first argument of every verb."""

    log: StreamLog
    status: TableStatus  # its table status, which caches parts
    client: str = ""  # who commits, for the history
    # What other rooms keep from one commit to the next.
    memory: dict[str, Any] = field(default_factory=dict, compare=False)
    launch: Launch = run_here  # runs the rows of jobs

    @classmethod
    def of(cls, log: StreamLog, *, client: str = "") -> Self:
        """Return the context of a log, with an empty table status."""
        return cls(log, TableStatus(log.storage), client)

    def fresh(self) -> Self:
        """Return the same context with an empty cache of status parts."""
        return replace(self, status=TableStatus(self.storage))

    def apart(self) -> Self:
        """Return a context of the same stream that another thread may use."""
        log = StreamLog(self.storage, clock=self.clock, grace_s=self.log.grace_s)
        log.follow_from(self.log)
        return type(self).of(log, client=self.client)

    def commit(
        self, next_root: Callable[[Root, Slot], Root | None], **changed: Any
    ) -> Committed[None]:
        """Commit the root that `next_root` returns, as this client; nothing if it is None.

        The history row names what `changed`.
        """

        def build(root: Root, slot: Slot) -> Change[None]:
            planned = next_root(root, slot)
            if planned is None:
                return Change(None)
            planned = replace(planned, client=self.client or planned.client)
            return Change(self.status.tidy(planned, slot), None, Note(changed=changed))

        return self.log.commit(build)

    @property
    def storage(self) -> Storage:
        """The stream's folder."""
        return self.log.storage

    @property
    def clock(self) -> Clock:
        """The clock, which also makes new ids."""
        return self.log.clock


def client_name(more: str = "") -> str:
    """Return the name of this writer for a stream's history: software, user, host, application.

    The last three come from SEGSTORE_CLIENT, by default from the platform. `more` are words of the
    program that uses this package; an application among them replaces the other one.
    """
    given = os.environ.get(CLIENT_VARIABLE)
    words = _platform_words() if given is None else given.split()
    if APPLICATION in more:
        words = [word for word in words if not word.startswith(APPLICATION)]
    python, arrow = f"python/{platform.python_version()}", f"pyarrow/{pa.__version__}"
    own = (word.encode("utf-8", "replace").decode()[:_WORD] for word in words)
    return " ".join((f"segstore/{__version__}", python, arrow, *own, *more.split()))[:_MOST]


def _platform_words() -> list[str]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # no user name, as in some containers
        user = ""
    application = Path(sys.argv[0] if sys.argv else "").name
    named = (("user/", user), ("host/", platform.node()), (APPLICATION, application))
    return [prefix + re.sub(r"\s", "_", value) for prefix, value in named if value]


def new_context(log: StreamLog) -> StreamContext:
    """Return the context of a log for a handle of this process."""
    return StreamContext.of(log, client=client_name())
