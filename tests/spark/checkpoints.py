"""What happens to a query's checkpoint when a driver dies at the wrong moment."""

from pathlib import Path


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
