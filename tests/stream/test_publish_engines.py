"""Published tables through other engines, in object stores and in catalogs that run here."""

import json
import os
import re
import subprocess
import venv
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest
from fixtures_s3 import S3Server
from fixtures_servers import FETCHES
from iceberg_rest import rest_catalog
from publish_kit import SCHEMA, SETTLED, events
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable
from test_publish_delta import READERS

import segstore_ds as segstore
from segstore_ds.publish import delta
from segstore_ds.publish.snapshot import Published
from segstore_ds.storage import Storage
from segstore_ds.stream.stream import Stream

DUCKDB = "1.5.5"  # the newest that its extensions are packaged for
Ask = Callable[..., list[list[Any]]]


def rows_of(stream: Stream) -> list[list[Any]]:
    """Return all events as lists, sorted by their number."""
    return [[*row.values()] for row in stream.read().read_all().sort_by("n").to_pylist()]


def change(stream: Stream) -> Iterator[None]:
    """Change the stream in the ways that change which files a table lists."""
    for start in range(0, 60, 20):
        stream.append(events(start, start + 20), layout=SETTLED)
    yield
    stream.compact(start=20, layout=SETTLED)
    yield
    stream.truncate(7)
    yield
    stream.redact([["n", "==", 34]], columns=["word"], redact_id="r")
    yield
    stream.overwrite(events(80, 90), layout=SETTLED)
    yield


@pytest.fixture(scope="module")
def duckdb() -> Iterator[Ask]:
    """Ask DuckDB of an environment with its extensions, which is made once and kept."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = folder / "segstore-benchmarks" / f"duckdb-{DUCKDB}"
    python = target / "bin" / "python"
    if not (target / "made").exists():
        venv.create(target, with_pip=True, clear=True)
        packages = [f"duckdb-extension-{name}" for name in ("avro", "delta", "httpfs", "iceberg")]
        pinned = [f"{name}=={DUCKDB}" for name in ("duckdb", *packages)]
        try:
            subprocess.run([python, "-m", "pip", "install", "--quiet", *pinned], check=True)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"DuckDB's extensions can't be installed here: {error}")
        (target / "made").touch()
    with subprocess.Popen(
        [python, Path(__file__).with_name("duckdb_driver.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(query: str, *parameters: str) -> list[list[Any]]:
            process.stdin.write(json.dumps([query, *parameters]) + "\n")
            process.stdin.flush()
            found = json.loads(process.stdout.readline())
            assert "rows" in found, found
            rows: list[list[Any]] = found["rows"]
            return rows

        yield ask
        process.stdin.close()


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """A bucket's URL, and options of a server that has it."""
    server = request.getfixturevalue(request.param)
    url = server.new_bucket()
    return url if "://" in url else f"s3://{url}", server.options


@pytest.mark.parametrize(
    "bucket", ["s3_server", pytest.param("minio", marks=FETCHES)], indirect=True
)
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_engines_read_tables_in_object_stores(
    duckdb: Ask, bucket: tuple[str, dict[str, Any]]
) -> None:
    """Each with its own client of the store, after every operation."""
    url, options = bucket
    stream = segstore.create(f"{url}/s", SCHEMA, storage_options=options, upkeep=None)
    key, secret, endpoint = options["key"], options["secret"], options["endpoint_url"]
    keys = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    account = f"key_id '{key}', secret '{secret}', region 'us-east-1'"
    place = f"endpoint '{endpoint.removeprefix('http://')}', use_ssl false, url_style 'path'"
    duckdb(f"create or replace secret s (type s3, {account}, {place})")
    for _ in change(stream):
        assert stream.publish("delta").url == stream.publish("iceberg").url == stream.url
        wanted = rows_of(stream)
        for name, read in READERS.items():
            found = sorted(read(stream.url, keys), key=lambda row: row["n"])
            assert [[*row.values()] for row in found] == wanted, name
        uris = deltalake.DeltaTable(stream.url, storage_options=keys).file_uris()
        assert {*uris} == {f"{stream.url}/{path}" for path in listed(stream._log.storage)}
        static = StaticTable.from_metadata(stream.url, properties=of_pyiceberg(options))
        assert rows_in(static) == wanted
        for kind in ("delta", "iceberg"):
            text = f"select * from {kind}_scan(?) order by n"  # noqa: S608 - of ours
            assert duckdb(text, stream.url) == wanted, kind
    stream.verify().check()


def listed(storage: Storage) -> Iterable[str]:
    """Return the paths that the Delta table lists, in the stream's folder."""
    return [file.path for file in delta.read_files(storage, delta.newest(storage))[1].values()]


def of_pyiceberg(options: dict[str, Any]) -> dict[str, str]:
    """Return storage options in pyiceberg's words."""
    return {
        "s3.endpoint": options["endpoint_url"],
        "s3.access-key-id": options["key"],
        "s3.secret-access-key": options["secret"],
        "s3.region": "us-east-1",
    }


def rows_in(table: StaticTable | Any) -> list[list[Any]]:
    """Return what pyiceberg finds in a table."""
    found = table.scan().to_arrow().sort_by("n").to_pylist()
    return [[*row.values()] for row in found]


def recipe() -> Callable[[Catalog, str, Published], None]:
    """Return what the page tells its readers to call."""
    page = (Path(segstore.__file__).parent / "docs/other_engines.md").read_text("utf-8")
    (block,) = re.findall(r"^def register\(.*?\n\n\n", page, re.DOTALL | re.MULTILINE)
    found: dict[str, Any] = {"StaticTable": StaticTable}
    exec(block, found)  # noqa: S102 - our own page
    return found["register"]  # type: ignore[no-any-return]


def check_registered(catalog: Catalog, stream: Stream) -> None:
    """Publish and register in a catalog, twice; it has the newest metadata then."""
    for _ in range(2):
        done = stream.publish("iceberg")
        recipe()(catalog, "db.clicks", done)
        assert done.metadata == f"{stream.url}/metadata/v{done.table_version}.metadata.json"
        assert catalog.load_table("db.clicks").metadata_location == done.metadata
        assert rows_in(catalog.load_table("db.clicks")) == rows_of(stream)


def test_recipe_registers_in_a_sql_catalog(tmp_path: Path) -> None:
    """Nothing is deleted, and another table of the name is left alone."""
    stream = segstore.create(tmp_path / "s", SCHEMA, upkeep=None)
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("db")
    for _ in change(stream):
        check_registered(catalog, stream)
    stream.verify().check()
    other = segstore.create(tmp_path / "other", SCHEMA, upkeep=None)
    other.append(events(0, 5), layout=SETTLED)
    with pytest.raises(ValueError, match="another table of the name"):
        recipe()(catalog, "db.clicks", other.publish("iceberg"))
    assert rows_in(catalog.load_table("db.clicks")) == rows_of(stream)
    catalog.close()


@pytest.mark.slow
def test_recipe_registers_in_glue(s3_server: S3Server) -> None:
    """By the property of its table, which says where the metadata is."""
    options = s3_server.options
    url = f"s3://{s3_server.new_bucket()}/s"
    stream = segstore.create(url, SCHEMA, storage_options=options, upkeep=None)
    glue = {"glue.endpoint": options["endpoint_url"], "glue.region": "us-east-1"}
    glue |= {"glue.access-key-id": options["key"], "glue.secret-access-key": options["secret"]}
    catalog = GlueCatalog("c", **glue, **of_pyiceberg(options))
    catalog.create_namespace("db")
    for _ in change(stream):
        check_registered(catalog, stream)


def test_recipe_registers_in_a_rest_catalog(tmp_path: Path) -> None:
    stream = segstore.create(tmp_path / "s", SCHEMA, upkeep=None)
    with rest_catalog() as catalog:
        for _ in change(stream):
            check_registered(catalog, stream)
