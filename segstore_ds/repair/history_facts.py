"""What the history says about commits whose files may be gone: offsets, counts, segment numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from segstore_ds.errors import FormatError
from segstore_ds.format.operation import Operation
from segstore_ds.format.root import Root
from segstore_ds.status.history import History
from segstore_ds.status.levels import readable_parts

NUMBERS_SKIPPED = 1 << 16  # segment numbers that a lost commit may have assigned
_WRITES = frozenset({Operation.APPEND, Operation.OVERWRITE, Operation.COPY})


@dataclass(frozen=True, slots=True)
class Fact:
    """What one commit did, taken from its history row."""

    version: int
    operation: str
    tail: int
    rows: int
    segments: int
    bytes: int
    writer_id: str | None
    batch_id: int | None


_NAMES = [field.name for field in fields(Fact)]


class HistoryFacts:
    """Answers questions by version and by offset.

    `next_segment` is the number that the next segment after version `newest` will get.
    """

    def __init__(self, facts: Mapping[int, Fact], newest: int, next_segment: int) -> None:
        self._facts = facts
        self._next = dict(_count_down(facts, newest, next_segment))

    def operation(self, version: int) -> str | None:
        """Return the operation of a commit; None if its row can't be read."""
        return self._facts[version].operation if version in self._facts else None

    def numbers(self, version: int) -> range | None:
        """Return the segment numbers that a commit assigned; None if they are not known."""
        first, end = self._next.get(version - 1), self._next.get(version)
        return None if first is None or end is None else range(first, end)

    def writers(self, version: int, count: int) -> dict[str, Fact]:
        """Return the last batches of `count` writers, by writer id.

        The writers are those whose last batch is the oldest; commits after `version` don't count.
        """
        last = {
            fact.writer_id: fact
            for _, fact in sorted(self._facts.items())
            if fact.version <= version
            and fact.writer_id is not None
            and fact.operation != Operation.REDACT
        }
        oldest = sorted(last.items(), key=lambda item: item[1].version)[:count]
        return dict(oldest)

    def appended(self, start: int, end: int, *, before: int) -> list[Fact] | None:
        """Return the commits that appended exactly the events of `[start, end)`, in order.

        Versions from `before` on don't count. It returns None if the rows don't cover the range
        without a gap, or if a commit crosses its bounds.
        """
        found: list[Fact] = []
        cursor = start
        for version in sorted(self._facts):
            fact = self._facts[version]
            if version < before and fact.rows and start < fact.tail <= end:
                if fact.tail - fact.rows != cursor or fact.operation not in _WRITES:
                    return None
                found.append(fact)
                cursor = fact.tail
        return found if cursor == end else None

    def compacted_after(self, version: int) -> int | None:
        """Return the first compaction or redaction after a version.

        It may have added segments that were planned on that version.
        """
        later = (number for number in sorted(self._facts) if number > version)
        rewrites = (Operation.COMPACT, Operation.REDACT)
        return next((number for number in later if self._facts[number].operation in rewrites), None)


def read_facts(history: History, root: Root) -> HistoryFacts:
    """Read all history rows that can be read."""
    facts: dict[int, Fact] = {}
    for part in readable_parts(history.levels, root):
        try:
            rows = history.part(part).to_pylist()
        except FormatError:
            continue
        for row in rows:
            facts[row["version"]] = Fact(*(row[name] for name in _NAMES))
    for row in root.history:
        facts[row.version] = Fact(*(getattr(row, name) for name in _NAMES))
    return HistoryFacts(facts, root.version, root.next_segment)


def _count_down(facts: Mapping[int, Fact], newest: int, next_segment: int) -> list[tuple[int, int]]:
    """Return the next segment number after each version, as far back as rows are known."""
    found = [(newest, next_segment)]
    for version in range(newest, 0, -1):
        fact = facts.get(version)
        if fact is None or fact.operation == Operation.UNKNOWN:
            break
        next_segment -= fact.segments
        before = facts.get(version - 1)
        if fact.operation == Operation.REPAIR and (
            before is None or before.operation == Operation.LOST
        ):
            next_segment -= NUMBERS_SKIPPED
        found.append((version - 1, next_segment))
    return found
