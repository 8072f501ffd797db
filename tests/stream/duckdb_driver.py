"""DuckDB with its table formats, of the version that its extensions are packaged for.

Each line of the input is JSON: a query and its parameters. Each line of the output is the rows.
"""

import importlib.util
import json
import sys
from pathlib import Path

import duckdb


def main() -> None:
    """Load the extensions from their packages, then answer queries."""
    connection = duckdb.connect()
    for name in ("httpfs", "avro", "delta", "iceberg"):
        package = importlib.util.find_spec(f"duckdb_extension_{name}")
        assert package is not None
        assert package.origin is not None
        (path,) = Path(package.origin).parent.glob("extensions/*/*.duckdb_extension")
        connection.execute(f"load '{path}'")
    for line in sys.stdin:
        query, *parameters = json.loads(line)
        try:
            answer = {"rows": connection.execute(query, parameters).fetchall()}
        except duckdb.Error as error:
            answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer, default=str) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
