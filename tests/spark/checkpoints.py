"""What happens to a query's checkpoint when a driver dies at the wrong moment."""

from pathlib import Path


def forget_newest_commit(checkpoint: Path) -> None:
    """Delete the newest file of Spark's commit log; with its checksum, or Spark trips over that."""
    commits = checkpoint / "commits"
    numbers = [int(path.name) for path in commits.glob("[0-9]*") if path.name.isdigit()]
    if numbers:
        (commits / str(max(numbers))).unlink()
        (commits / f".{max(numbers)}.crc").unlink(missing_ok=True)
