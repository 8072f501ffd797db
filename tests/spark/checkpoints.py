"""A query with a checkpoint, and what happens to it when a driver dies at the wrong moment."""

from pathlib import Path

from pyspark.sql.streaming import DataStreamWriter, StreamingQuery


def forget_newest_commit(checkpoint: Path) -> None:
    """Delete the newest file of Spark's commit log."""
    _forget_newest(checkpoint / "commits")


def set_back(checkpoint: Path) -> None:
    """Put the checkpoint back by one batch."""
    for log in ("commits", "offsets"):
        _forget_newest(checkpoint / log)


def _forget_newest(log: Path) -> None:
    """Delete a log's newest file; with its checksum, or Spark trips over that."""
    numbers = [int(path.name) for path in log.glob("[0-9]*") if path.name.isdigit()]
    if numbers:
        (log / str(max(numbers))).unlink()
        (log / f".{max(numbers)}.crc").unlink(missing_ok=True)


def start_query(writer: DataStreamWriter, checkpoint: str, *, now: bool) -> StreamingQuery:
    """Start a query that runs until it is stopped; with `now` to the end of what is there."""
    trigger = {"availableNow": True} if now else {"processingTime": "0 seconds"}
    query = writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()
    if now:
        query.awaitTermination()
    return query
