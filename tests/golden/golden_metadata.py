"""What a reader of history and named readers does, from FORMAT.md alone (5.3, 8)."""

import json
import re
from pathlib import Path
from typing import Any

from golden_reader import envelope, newest_root, rows_of, status

COLUMNS = "version time operation head tail rows segments bytes writer_id batch_id client"
COLUMNS += " application attempts races_lost requests request_bytes transaction merged"


def read_history(folder: Path) -> list[list[Any]]:
    """Return the rows of all commits, as the root writes them (5.3)."""
    root, refs, rows = newest_root(folder), [], []
    for path, *_ in root["history_lists"]:
        refs += json.loads(status([folder], path))
    for path, start, end, count, _, first_us, last_us, _ in [*refs, *root["history_parts"]]:
        assert count == end - start
        _, columns = rows_of(status([folder], path))
        part = [list(row) for row in zip(*(columns[name] for name in COLUMNS.split()), strict=True)]
        assert [row[0] for row in part] == list(range(start, end))
        assert (part[0][1], part[-1][1]) == (first_us, last_us)
        rows += part
    return rows + root["history"]


def read_readers(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the newest record of each named reader (8)."""
    records = {}
    for log in folder.glob("readers/[!_]*"):
        numbered = [path for path in log.iterdir() if re.fullmatch("[0-9]{20}", path.name)]
        record = json.loads(envelope(max(numbered).read_bytes()))
        assert (record["name"], record["number"]) == (log.name, int(max(numbered).name))
        hinted = (folder / "readers" / "_latest" / log.name).read_text().split()[0]
        assert max(numbered).name >= hinted
        records[log.name] = record
    return records
