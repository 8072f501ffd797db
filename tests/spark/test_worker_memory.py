"""What Spark's Python workers hold, and read as they start; they are reused by later jobs.

They freeze what they hold once, which a driver never does, keep a read cache, and read none of the
archives on their path for fsspec's entry points.
"""

import gc
import json
import zipfile
from collections import defaultdict
from pathlib import Path

import fsspec
import pyspark
import pytest
from noting_source import NotingSource, read_notes
from process_kit import plain_environment
from sessions import run_program

import segstore_ds as segstore
from segstore_ds.spark.workers import freeze_worker
from segstore_ds.write.layout import Layout

BATCHES = 4


@pytest.mark.smoke
def test_workers_freeze_once(spark, url, tmp_path):
    """Every process freezes something, and what it froze first does not grow."""
    spark.dataSource.register(NotingSource)
    segstore.spark.write(spark.range(100), url)
    for _ in range(BATCHES):
        assert spark.read.format("noting").load(url).count() == 100
    frozen = defaultdict(list)
    for note in read_notes(tmp_path):
        frozen[note["pid"]].append(note["frozen"])
    assert sum(map(len, frozen.values())) >= BATCHES
    for counts in frozen.values():
        assert min(counts) > 10_000
        assert counts == sorted(counts, reverse=True)  # frozen objects may still go, one by one


def test_the_drivers_process_is_never_frozen(spark, url):
    segstore.spark.write(spark.range(3), url)
    assert segstore.spark.read(spark, url).count() == 3
    freeze_worker()
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold()[0] < 10_000


READS_THEN_WRITES = """
import gc, json, sys
from pyspark import worker
usual = gc.get_threshold()
import segstore_ds.spark.source
assert gc.get_threshold()[0] > 100 * usual[0]
from segstore_ds.spark.workers import freeze_worker
from segstore_ds.write.layout import Layout
notes = []
for entry in ("read", "read", "write", "read", "write"):
    before = gc.get_freeze_count()
    freeze_worker(entry)
    notes.append([entry, gc.get_freeze_count() > before, "pandas" in sys.modules])
    assert gc.get_threshold() == usual
print(json.dumps(notes))
"""


def test_tasks_that_only_read_import_no_pandas():
    """The first task that writes does: Spark makes an array of its message."""
    pytest.importorskip("pandas")
    environment = plain_environment(SPARK_REUSE_WORKER="1")
    assert json.loads(run_program("-c", READS_THEN_WRITES, env=environment)) == [
        ["read", True, False],
        ["read", False, False],
        ["write", True, True],
        ["read", False, True],
        ["write", False, True],
    ]


REPOSITORY = Path(__file__).parents[2]
# As Spark starts a worker: pyspark itself comes from an archive, too.
LIBRARIES = sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"))
ARCHIVES = """
import json, sys, zipfile
import pyspark
path, opened, real = list(sys.path), [], zipfile.ZipFile.__init__
def note(made, file, *rest, **more):
    opened.append(str(file))
    real(made, file, *rest, **more)
zipfile.ZipFile.__init__ = note
{imports}
import fsspec
print(json.dumps([opened, sys.path == path, fsspec.__file__, pyspark.__file__]))
"""
OURS = """from pyspark import worker_util
import segstore_ds.storage
segstore_ds.storage.open_storage('memory://x')"""


def start(imports, *archives):
    paths = ":".join(map(str, [*LIBRARIES, *archives, REPOSITORY]))
    environment = plain_environment(PYTHONPATH=paths)
    return json.loads(run_program("-c", ARCHIVES.format(imports=imports), env=environment))


@pytest.mark.smoke
def test_no_archive_is_searched():
    opened, path_is_whole, _, spark = start(OURS)
    assert ".zip" in spark
    assert (opened, path_is_whole) == ([], True)


def test_fsspec_in_an_archive_is_found(tmp_path):
    """As users ship packages by `--py-files`: nothing else on the path has it."""
    package, archive = Path(fsspec.__file__).parent, tmp_path / "packages.zip"
    with zipfile.ZipFile(archive, "w") as made:
        for file in package.rglob("*.py"):
            made.write(file, Path("fsspec") / file.relative_to(package))
    # Python looks for it in no folder: not in the environment's packages either.
    hide = """
from importlib.machinery import PathFinder
class Hidden(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "fsspec":
            path = [entry for entry in sys.path if entry.endswith(".zip")]
        return PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Hidden
"""
    _, path_is_whole, found, _ = start(hide + OURS, archive)
    assert path_is_whole
    assert found.startswith(str(archive))


SCANS = 4
SEGMENTS = 10  # so many that tasks read them


@pytest.fixture
def scan(spark, url, tmp_path):
    """Scan a stream of one task so often; return each process's requests in order."""
    spark.dataSource.register(NotingSource)
    rows = spark.range(1_000).toArrow()
    stream = segstore.create(url, rows.schema)
    layout = Layout(inline_bytes=0, frame_rows=100)
    for start in range(0, 1_000, 1_000 // SEGMENTS):
        stream.append(rows.slice(start, 1_000 // SEGMENTS), layout=layout)

    def run(**options):
        read_notes(tmp_path)
        for _ in range(SCANS):
            df = spark.read.format("noting").options(**options).load(url)
            assert df.count() == 1_000
        found = defaultdict(list)
        for note in read_notes(tmp_path):
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
