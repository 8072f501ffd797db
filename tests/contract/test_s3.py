"""The storage contract on S3's protocol over real HTTP, and what only it can show."""

import pickle
import secrets
import traceback
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from s3fs.core import S3File, S3FileSystem
from storage_contract import StorageContract

import segstore_ds as segstore
from segstore_ds.errors import (
    InvalidInputError,
    MissingObjectError,
    StorageError,
    UnsafeFilesystemError,
)
from segstore_ds.storage import Storage, objects, open_storage, stores


class TestS3(StorageContract):
    copies = True

    @pytest.fixture
    def storage(self, s3_server, request) -> Storage:
        request.cls.secret = s3_server.secret
        return open_storage(f"s3a://{s3_server.new_bucket()}/a/stream", s3_server.options)

    def raw_names(self, storage: Storage) -> list[str]:
        root = storage.url.removeprefix("s3://")
        fs = S3FileSystem(**storage._options, use_listings_cache=False)
        uploads = fs.call_s3("list_multipart_uploads", Bucket=root.partition("/")[0])
        assert not uploads.get("Uploads")
        return [name.removeprefix(f"{root}/") for name in fs.find(root)]

    # Here all requests pass one lock: threads race on MinIO.
    test_threads_that_race_have_one_winner_each = None

    @pytest.mark.slow
    def test_processes_that_race_have_one_winner_each(self, storage: Storage) -> None:
        super().test_processes_that_race_have_one_winner_each(storage)


@pytest.fixture
def storage(s3_server) -> Storage:
    return open_storage(f"s3://{s3_server.new_bucket()}/stream", s3_server.options)


def test_each_call_is_one_request(s3_server, storage):
    storage.create("log/1", b"0123456789")
    path = f"/{storage.url.removeprefix('s3://')}/log"
    for work, request in [
        (lambda: storage.create("log/2", b"x"), f"PUT {path}/2"),
        (lambda: storage.create("log/2", b"y"), f"PUT {path}/2"),
        (lambda: storage.get("log/1"), f"GET {path}/1"),
        (lambda: storage.get("log/1", limit_bytes=100), f"GET {path}/1"),
        (lambda: storage.get_range("log/1", 2, 4), f"GET {path}/1"),
        (lambda: storage.info("log/1"), f"HEAD {path}/1"),
        (lambda: storage.put("log/hint", b"x"), f"PUT {path}/hint"),
        (lambda: storage.delete("log/2"), f"DELETE {path}/2"),
    ]:
        assert s3_server.requests(work) == [request]
    for read in (storage.get, storage.info):
        assert len(s3_server.requests(lambda read=read: is_missing(read, "no"))) == 1
    assert len(s3_server.requests(lambda: list(storage.list("log")))) == 1


def is_missing(read, path):
    with pytest.raises(MissingObjectError):
        read(path)


def test_small_staged_object_is_one_put(s3_server, storage):
    def stage():
        with storage.open_staged("segments/1") as writer:
            writer.write(b"x" * 100_000)
            writer.commit()

    assert [line.split()[0] for line in s3_server.requests(stage)] == ["PUT"]


def test_a_copy_within_the_store_sends_no_content(s3_server, storage):
    data = secrets.token_bytes(3_000_000)
    storage.create("segments/1", data)
    storage.stats.reset()
    verbs = [
        line.split()[0]
        for line in s3_server.requests(
            lambda: storage.copy_from(storage, "segments/1", "segments/2")
        )
    ]
    assert verbs == ["HEAD", "PUT"]
    assert storage.stats.bytes_read == storage.stats.bytes_written == 0
    assert storage.get("segments/2") == data


def test_other_credentials_copy_nothing_within_the_store(s3_server, storage):
    """The one that writes may not be allowed to read there: the bytes are passed on instead."""
    other = open_storage(storage.url + "-2", {**s3_server.options, "secret": "another"})
    assert not storage.copy_from(other, "segments/1", "segments/2")
    assert not storage.copy_from(open_storage("memory://x"), "segments/1", "segments/2")


def test_custom_endpoint_is_probed_once(s3_server, monkeypatch):
    monkeypatch.setattr(objects, "_PROBED", set())
    first = open_storage(f"s3://{s3_server.new_bucket()}/s", s3_server.options)
    probe = [line.split()[0] for line in s3_server.requests(first.ensure_exclusive)]
    assert probe == ["PUT", "PUT", "GET", "DELETE"]
    second = open_storage(f"s3://{s3_server.new_bucket()}/s", s3_server.options)
    assert s3_server.requests(second.ensure_exclusive) == []


def test_endpoint_that_ignores_the_condition_is_refused(s3_server, monkeypatch):
    monkeypatch.setattr(objects, "_PROBED", set())
    location = f"s3://{s3_server.new_bucket('ignoring')}/s"
    storage = open_storage(location, s3_server.options)
    for _ in range(2):
        with pytest.raises(UnsafeFilesystemError, match="conditional puts"):
            storage.ensure_exclusive()
    assert S3FileSystem(**s3_server.options).find(storage.url) == []
    open_storage(location, s3_server.options, single_writer=True).ensure_exclusive()


def test_endpoint_without_conditional_puts_is_for_one_writer(s3_server, monkeypatch):
    """It answers 501; with `single_writer=True` no condition is sent, and threads still exclude."""
    monkeypatch.setattr(objects, "_PROBED", set())
    url, options = f"s3://{s3_server.new_bucket('lacking')}/s", s3_server.options
    with pytest.raises(UnsafeFilesystemError, match="single_writer=True"):
        segstore.create(url, pa.schema([("n", pa.int64())]), storage_options=options)
    assert S3FileSystem(**options).find(url) == []
    storage = open_storage(url, options, single_writer=True)
    with ThreadPoolExecutor(8) as threads:
        made = [*threads.map(lambda n: storage.create("log/1", b"%d" % n), range(8))]
    assert sum(made) == 1
    assert storage.get("log/1") == b"%d" % made.index(True)
    stream = segstore.create(
        f"{url}-2", pa.schema({"n": pa.int64()}), storage_options=options, single_writer=True
    )
    stream.append({"n": 1})
    assert stream.readers.register("billing", start=0).offset == 0
    other = segstore.open(stream.url, storage_options=options)
    for write in (lambda: other.append({"n": 2}), lambda: other.readers.register("etl", start=0)):
        with pytest.raises(UnsafeFilesystemError, match="single_writer=True"):
            write()
    assert [seen.name for seen in other.refresh().readers] == ["billing"]


def test_endpoint_without_checksums_is_told_of_the_setting(s3_server, monkeypatch):
    monkeypatch.setattr(objects, "_PROBED", set())
    url, options = f"s3://{s3_server.new_bucket('plain')}/s", s3_server.options
    with pytest.raises(StorageError, match="'request_checksum_calculation'") as caught:
        open_storage(url, options).ensure_exclusive()
    assert not isinstance(caught.value, UnsafeFilesystemError)
    assert not caught.value.retryable
    with pytest.raises(StorageError, match="'request_checksum_calculation'"):
        segstore.create(
            url, pa.schema({"n": pa.int64()}), storage_options=options, single_writer=True
        )
    calm = {"config_kwargs": {"request_checksum_calculation": "when_required"}}
    open_storage(url, {**options, **calm}).ensure_exclusive()


def test_parts_of_an_upload_have_one_size_where_the_store_asks_for_it(s3_server, monkeypatch):
    """Cloudflare R2 refuses an upload of which two parts but the last differ in size."""
    sizes: list[int] = []
    call = S3File._call_s3

    def noted(file, method, *args, **named):
        if method == "upload_part":
            sizes.append(len(named["Body"]))
        return call(file, method, *args, **named)

    monkeypatch.setattr(S3File, "_call_s3", noted)
    monkeypatch.setattr(stores.S3Store, "equal_parts", s3_server.endpoint)
    options = {**s3_server.options, "default_fill_cache": False}  # a filesystem of its own
    storage = open_storage(f"s3://{s3_server.new_bucket()}/s", options)
    with storage.open_staged("segments/t/1") as writer:
        for size in (6_000_000, 7_000_000, 5_500_000):
            writer.write(bytes(size))
        writer.commit()
    assert len({*sizes[:-1]}) == 1
    there = {**options, "endpoint_url": "https://account.eu.r2.cloudflarestorage.com"}
    monkeypatch.undo()
    assert open_storage("s3://bucket/s", there).fs.fixed_upload_size
    assert sum(sizes) == storage.info("segments/t/1").size == 18_500_000


def test_conflict_decides_nothing(s3_server):
    """409 means that another request is under way: neither won nor lost."""
    storage = open_storage(f"s3://{s3_server.new_bucket('conflicting')}/s", s3_server.options)
    with pytest.raises(StorageError, match="made by the tests"):
        storage.create("x", b"x")


def test_own_retry_gets_already_exists(s3_server):
    """The put lands, its answer is lost, the client's retry loses to it: only reading can tell."""
    storage = open_storage(f"s3://{s3_server.new_bucket('forgetful')}/s", s3_server.options)
    assert storage.create("x", b"mine") is False
    assert storage.get("x") == b"mine"


def test_curt_refusal_is_definite(s3_server):
    storage = open_storage(f"s3://{s3_server.new_bucket('curt')}/s", s3_server.options)
    assert storage.create("x", b"1") is True
    assert storage.create("x", b"2") is False


def test_old_package_is_refused(storage, monkeypatch):
    for module, version in [("s3fs", "2024.12.0"), ("botocore", "1.35.19")]:
        with monkeypatch.context() as patch:
            patch.setattr(f"{module}.__version__", version)
            with pytest.raises(UnsafeFilesystemError, match=f"package='{module}'"):
                storage.ensure_exclusive()


def test_missing_bucket_is_named_in_the_error(s3_server):
    storage = open_storage("s3://no-such-bucket-here/s", s3_server.options)
    for use in (
        lambda: storage.get("x"),
        lambda: storage.create("x", b"x"),
        lambda: list(storage.list("")),
    ):
        with pytest.raises(StorageError, match="does not exist"):
            use()


def test_unreachable_endpoint_shows_no_secret(s3_server):
    options = {**s3_server.options, "endpoint_url": "http://127.0.0.1:9"}
    storage = open_storage(
        "s3://bucket/s", {**options, "config_kwargs": {"retries": {"max_attempts": 0}}}
    )
    with pytest.raises(StorageError) as caught:
        storage.create("x", b"x")
    texts = [str(caught.value), *traceback.format_exception(caught.value)]
    assert not any(s3_server.secret in text or s3_server.key in text for text in texts)
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert str(again) == str(caught.value)


def test_cause_that_shows_the_secret_is_replaced(s3_server, storage):
    """S3 answers a wrong access key with the key in its text; so does whatever a proxy says."""

    def fail():
        raise OSError("request failed") from ValueError(f"signed with {s3_server.secret}")

    with pytest.raises(StorageError) as caught:
        storage.run("get", "log/1", fail)
    printed = "".join(traceback.format_exception(caught.value))
    assert s3_server.secret not in printed
    assert caught.value.__context__ is None


def test_environment_holds_the_keys(s3_server, monkeypatch):
    monkeypatch.setenv("TEST_S3_KEY", s3_server.key)
    monkeypatch.setenv("TEST_S3_SECRET", s3_server.secret)
    options = {**s3_server.options, "key": "env:TEST_S3_KEY", "secret": "env:TEST_S3_SECRET"}
    storage = open_storage(f"s3://{s3_server.new_bucket()}/s", options)
    assert storage.create("x", b"x") is True
    assert s3_server.secret.encode() not in pickle.dumps(storage)
    again = pickle.loads(pickle.dumps(storage))  # noqa: S301
    monkeypatch.setenv("TEST_S3_SECRET", "renewed")
    assert again.get("x") == storage.get("x") == b"x"
    assert {again.fs.secret, storage.fs.secret} == {"renewed"}
    monkeypatch.delenv("TEST_S3_SECRET")
    with pytest.raises(InvalidInputError, match="TEST_S3_SECRET"):
        pickle.loads(pickle.dumps(storage)).get("x")  # noqa: S301


@pytest.mark.parametrize("wrong", [{"no_such_option": 1}, {"client_kwargs": {"no_such": 1}}])
def test_options_that_the_client_does_not_know_are_named(s3_server, wrong):
    """s3fs would say so as a TypeError at the first request."""
    with pytest.raises(InvalidInputError, match="no_such"):
        open_storage("s3://anywhere/s", {**s3_server.options, **wrong}).get("x")


def test_a_probe_that_was_cut_off_is_found(storage):
    storage.create("log/1", b"x")
    storage.create(".probe-0", b"x")
    assert [info.path for info in storage.temporaries()] == [".probe-0"]
    storage.delete(".probe-0")
    assert list(storage.temporaries()) == []
