"""The read cache in Spark's Python workers, which are reused by later jobs."""

import json
from collections import defaultdict

import pytest
from counted_source import CountedSource

import segstore_ds as segstore
from segstore_ds.write.layout import Layout

SCANS = 4
SEGMENTS = 10  # so many that tasks read them


@pytest.fixture
def scan(spark, url, tmp_path):
    """Scan a stream of one task so often; return each process's requests in order."""
    spark.dataSource.register(CountedSource)
    rows = spark.range(1_000).toArrow()
    stream = segstore.create(url, rows.schema)
    layout = Layout(inline_bytes=0, frame_rows=100)
    for start in range(0, 1_000, 1_000 // SEGMENTS):
        stream.append(rows.slice(start, 1_000 // SEGMENTS), layout=layout)

    def run(**options):
        (tmp_path / "notes").write_text("")
        for _ in range(SCANS):
            df = spark.read.format("counted").options(**options).load(url)
            assert df.count() == 1_000
        found = defaultdict(list)
        for line in (tmp_path / "notes").read_text().splitlines():
            note = json.loads(line)
            assert note["rows"] == 1_000
            found[note["pid"]].append(note["requests"])
        assert sum(map(len, found.values())) == SCANS
        return found

    return run


def test_second_scan_of_a_worker_sends_no_data_request(scan):
    """Each worker reads from storage once; two cores keep at most two of them."""
    found = scan()
    assert len(found) < SCANS
    for requests in found.values():
        assert requests[0] == SEGMENTS  # one for each
        assert not any(requests[1:])


def test_two_users_of_a_worker_share_nothing(scan):
    """The same stream with other credentials: another user's reads are not used."""
    ada, bob = ({"storageOptions": json.dumps({"key": name})} for name in ("ada", "bob"))
    first, second = scan(**ada), scan(**bob)
    assert len(first.keys() | second.keys()) < SCANS  # so both used the same ones
    for found in (first, second):
        assert all(requests[0] == SEGMENTS for requests in found.values())
        assert not any(sum(requests[1:]) for requests in found.values())


def test_option_switches_the_cache_off(scan):
    found = scan(readCacheBytes=0)
    assert all(set(requests) == {SEGMENTS} for requests in found.values())
