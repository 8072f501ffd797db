"""What a redaction tells its caller."""

import datetime as dt
from dataclasses import dataclass

BEYOND = (
    "older versions of objects, where the bucket keeps them: delete noncurrent versions there",
    "memory and read caches of other processes: restart what read the events",
    "copies by segments or events, files written from reads, checkpoints, backups: redact each",
    "folders that the stream was once replicated to: delete them",
)
AGAIN = "the same call again"


@dataclass(frozen=True, slots=True)
class Left:
    """Something that may still hold redacted values.

    Attributes:
        where: The location of the stream, of a folder that replicates it, or of a clone.
        what: What it is.
        why: What it waits for.
        call: The call that ends it.
    """

    where: str
    what: str
    why: str
    call: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}: {self.why}; {self.call}"


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How far a redaction's old values are gone.

    Attributes:
        done: Nothing is left of them in the stream, where it is replicated, and in its clones.
        due: When what only waits can go, by the store's clock; None once nothing waits.
        left: What may still hold them.
        beyond: What no call of segstore reaches, if there is any.
    """

    done: bool
    due: dt.datetime | None
    left: tuple[Left, ...]
    beyond: tuple[str, ...] = BEYOND

    def __str__(self) -> str:
        if self.done:
            return "\n".join(["forgotten, as far as segstore reaches; look after", *self.beyond])
        until = f" before {self.due}" if self.due else ": no wait ends what is left"
        return "\n".join([f"not forgotten{until}", *map(str, self.left)])


@dataclass(frozen=True, slots=True)
class Redacted:
    """What a redaction did, over all calls with its id.

    Attributes:
        redact_id: Its id.
        version: The first version without the values.
        tail: Every event below this offset was looked at; later ones were not.
        rows: How many events lost values.
        segments: How many segments were replaced.
        repeated: Whether it was done before this call.
        forgotten: How far its old values are gone, if that was asked for.
    """

    redact_id: str
    version: int
    tail: int
    rows: int
    segments: int
    repeated: bool = False
    forgotten: Forgotten | None = None
