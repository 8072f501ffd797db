"""What a caller asks of a copy, and what it gets back; the same for all modes."""

import re
from dataclasses import dataclass

from segstore_ds.errors import InvalidInputError
from segstore_ds.format import names
from segstore_ds.format.copies import CopyRecord
from segstore_ds.format.envelope import digest_of
from segstore_ds.format.record import build_json
from segstore_ds.format.root import Root

_COPY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """What a caller asks to copy.

    Attributes:
        copy_id: Names the copy: a call with the same id continues it, or does nothing.
        start: Where the range begins, as given; part of what the id stands for.
        end: Where the range ends, as given.
        seal: Whether the destination is sealed after the last event.
        mode: ``segments``, ``events``, ``rows`` (made by a job from the events) or ``clone``.
        version: The version that a clone starts from; None for the newest one.
        allow_redacted: Whether a clone may start from a version older than a redaction.
    """

    copy_id: str
    start: str
    end: str
    seal: bool = False
    mode: str = "segments"
    version: int | None = None
    allow_redacted: bool = False

    def __post_init__(self) -> None:
        """Check the values that go into the destination's root unchanged."""
        if not isinstance(self.seal, bool):
            raise InvalidInputError(
                "seal is not a boolean", remedy="give True or False", seal=self.seal
            )
        if not isinstance(self.copy_id, str) or _COPY_ID.fullmatch(self.copy_id) is None:
            raise InvalidInputError(
                "not a copy id", remedy="use letters, digits and dashes", copy_id=self.copy_id
            )

    @property
    def token(self) -> str:
        """Name of the folder that holds the copied objects."""
        return names.build_copy_token(self.copy_id)

    def digest(self, source: Root) -> str:
        """Return the digest that tells this request from another one under the same id."""
        given = [source.stream_id, source.generation, self.start, self.end, self.seal, self.mode]
        given += [] if self.version is None else [self.version]
        return digest_of(build_json(given))

    def check_digest(self, known: str, source: Root, *, url: str) -> None:
        """Raise InvalidInputError unless this is the digest that the id stands for at `url`."""
        if known != self.digest(source):
            raise InvalidInputError(
                "the copy id was used for another copy",
                remedy="repeat the copy with the arguments of its first call, or use another id",
                copy_id=self.copy_id,
                url=url,
            )

    def begin(self, source: Root, bounds: tuple[int, int], *, mode: str) -> CopyRecord:
        """Return the record of this copy of a range of the source, without what it made."""
        return CopyRecord(
            copy_id=self.copy_id,
            mode=mode,
            source=source.stream_id,
            generation=source.generation,
            version=source.version,
            start=bounds[0],
            end=bounds[1],
            digest=self.digest(source),
        )


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy did: the destination holds the source's events ``[start, end)``, or a job's rows.

    Attributes:
        start: Offset of the first event of the source.
        end: Offset after the last event of the source.
        segments: Number of segments that the copy added to the destination.
        bytes: Encoded bytes of those segments; 0 for a clone.
        reused: Number of segments that had arrived whole in an earlier attempt.
        repeated: Whether the copy had been done before.
    """

    start: int
    end: int
    segments: int
    bytes: int
    reused: int = 0
    repeated: bool = False
