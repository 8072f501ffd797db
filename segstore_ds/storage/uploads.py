"""Uploads in numbered parts, which may be sent in any order and in parallel."""

import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from fsspec.asyn import sync

from segstore_ds.errors import InvalidInputError, StorageError
from segstore_ds.storage.base import ScatteredWriter
from segstore_ds.storage.checked import CheckedStorage

LEAST_PART_BYTES = 5 << 20  # least size that S3 accepts, except for the last part
MOST_PARTS = 10_000


class S3Upload:
    """One multipart upload of an object; `full` is bucket and key."""

    def __init__(self, fs: Any, full: str) -> None:
        self._fs = fs
        bucket, _, key = full.partition("/")
        self._place = {"Bucket": bucket, "Key": key}
        answer = fs.call_s3("create_multipart_upload", **self._place)
        self._place_of_parts = {**self._place, "UploadId": answer["UploadId"]}

    def put(self, number: int, data: bytes) -> Mapping[str, Any]:
        """Send a part; return its entry for `complete`."""
        answer = self._fs.call_s3(
            "upload_part", **self._place_of_parts, PartNumber=number, Body=data
        )
        checksums = {name: text for name, text in answer.items() if name.startswith("Checksum")}
        checksums.pop("ChecksumType", None)
        return {"PartNumber": number, "ETag": answer["ETag"], **checksums}

    def complete(self, parts: Sequence[Mapping[str, Any]]) -> None:
        """Create the object from its parts, in the order of their numbers."""
        self._fs.call_s3(
            "complete_multipart_upload", **self._place_of_parts, MultipartUpload={"Parts": parts}
        )

    def abort(self) -> None:
        """Discard all parts."""
        self._fs.call_s3("abort_multipart_upload", **self._place_of_parts)


class AzureUpload:
    """Blocks of one blob, committed by a list of their ids.

    Writers of one blob share its uncommitted blocks. So every block sent gets a unique id: a list
    never names a block of another writer, or of an earlier try.
    """

    def __init__(self, fs: Any, full: str) -> None:
        self._fs = fs
        container, _, blob = full.partition("/")
        self._place = {"container": container, "blob": blob}

    def put(self, number: int, data: bytes) -> Mapping[str, Any]:
        """Send a block; return its id."""
        block = f"{number:08d}{uuid.uuid4().hex}"  # all ids of a blob have one length
        self._call("stage_block", block_id=block, data=data, length=len(data))
        return {"id": block}

    def complete(self, parts: Sequence[Mapping[str, Any]]) -> None:
        """Create the blob from its blocks, in the order of their numbers."""
        block = import_module("azure.storage.blob").BlobBlock
        blocks = [block(part["id"]) for part in parts]
        # adlfs sets this for every blob that is no folder.
        self._call("commit_block_list", block_list=blocks, metadata={"is_directory": "false"})

    def abort(self) -> None:
        """Do nothing: the service deletes the blocks with the blob's next list, or in a week."""

    def _call(self, method: str, **arguments: Any) -> None:
        async def call() -> None:
            async with self._fs.service_client.get_blob_client(**self._place) as client:
                await getattr(client, method)(**arguments)

        sync(self._fs.loop, call)


UPLOADS: Mapping[str, type[S3Upload | AzureUpload]] = {"s3": S3Upload, "abfs": AzureUpload}


class PartsWriter(ScatteredWriter):
    """Sends each part of an object as one request; an object of one part is put at commit."""

    def __init__(
        self, storage: CheckedStorage, path: str, full: str, fs: Any, sizes: tuple[int, int]
    ) -> None:
        upload = UPLOADS[storage.location.scheme]
        self._storage, self._path, self._full = storage, path, full
        self._size, self._part_bytes = sizes
        self._lock = threading.Lock()
        self._sent: dict[int, Mapping[str, Any]] = {}
        self._only: bytes | None = None
        self._open = True
        self._upload = upload(fs, full) if self._size > self._part_bytes else None

    def write_at(self, start: int, pieces: Sequence[Any]) -> None:  # noqa: D102
        self._check_open()
        data = _whole(pieces)
        if self._upload is None:
            self._only = data
        else:
            number = start // self._part_bytes + 1
            sent = self._storage.resume("stage", self._path, self._upload.put, number, data)
            with self._lock:
                self._sent[number] = sent
        self._storage.stats.add_written(len(data))

    def commit(self) -> int:  # noqa: D102
        self._check_open()
        try:
            self._storage.resume("stage", self._path, self._finish)
        except StorageError:
            self.abort()
            raise
        self._open = False
        return self._size

    def _finish(self) -> None:
        if self._upload is None:
            self._storage._put(self._full, self._only or b"")  # noqa: SLF001
        else:
            self._upload.complete([self._sent[number] for number in sorted(self._sent)])

    def abort(self) -> None:  # noqa: D102
        was_open, self._open = self._open, False
        if was_open and self._upload is not None:
            with suppress(*self._storage._foreign()):  # noqa: SLF001
                self._upload.abort()

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidInputError("staged object was committed or aborted", path=self._path)


def _whole(pieces: Sequence[Any]) -> bytes:
    """Return pieces as bytes, without a copy if they are one complete bytes object."""
    if len(pieces) == 1:
        view = memoryview(pieces[0])
        if isinstance(view.obj, bytes) and len(view.obj) == view.nbytes:
            return view.obj
    return b"".join(pieces)
