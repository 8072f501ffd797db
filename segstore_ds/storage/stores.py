"""What differs between the object stores: their fsspec classes, versions, errors and requests.

Each store is opened through the class that was tested. A class that a user registered for the same
scheme is not used: most of fsspec accepts the mode for exclusive creation and ignores it.
"""

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar
from urllib.parse import urlsplit

from fsspec.asyn import sync

from segstore_ds.errors import InvalidInputError, UnsafeFilesystemError
from segstore_ds.storage.credentials import chain
from segstore_ds.storage.locations import Location
from segstore_ds.version import requirement


class ObjectStore(ABC):
    """One kind of object store."""

    extra: ClassVar[str]
    module: ClassVar[str]
    class_name: ClassVar[str]
    least_versions: ClassVar[Mapping[str, str]]
    own_hosts: ClassVar[tuple[str, ...]]
    foreign_classes: ClassVar[tuple[str, ...]]
    other_names: ClassVar[Mapping[str, str]] = {}  # remedies by the options of other libraries
    patience: ClassVar[frozenset[str]]  # options by which a caller says how long to wait
    copies: ClassVar[bool] = False  # the store can copy between any two buckets; tested

    def connect(self, location: Location, options: Mapping[str, Any]) -> Any:
        """Create fsspec's filesystem from resolved options, without caches; sends no request."""
        self._refuse_other_names(options)
        cls = getattr(_import(self.module, self.extra), self.class_name)
        return cls(**{**self.location_options(location), **options, "use_listings_cache": False})

    def _refuse_other_names(self, options: Mapping[str, Any]) -> None:
        found = {name: self.other_names.get(name.lower()) for name in options}
        theirs = {name: ours for name, ours in found.items() if ours is not None}
        if theirs:
            raise InvalidInputError(
                "storage options belong to another library",
                remedy=", ".join(f"instead of {name} {ours}" for name, ours in theirs.items()),
                options=sorted(theirs),
            )

    def has_own_patience(self, options: Mapping[str, Any]) -> bool:
        """Tell whether the caller says how long to wait for the store, or how to reach it."""
        return not self.patience.isdisjoint(options)

    def location_options(self, location: Location) -> dict[str, Any]:  # noqa: ARG002
        """Return the filesystem options that the URL itself contains."""
        return {}

    def foreign(self) -> tuple[type[BaseException], ...]:
        """Return the exception classes of this store's packages."""
        classes: list[type[BaseException]] = [OSError, TimeoutError]
        for name in self.foreign_classes:
            module, _, attribute = name.rpartition(".")
            classes.append(getattr(_import(module, self.extra), attribute))
        return tuple(classes)

    def check_versions(self) -> None:
        """Refuse packages whose exclusive create does not work yet."""
        for package, least in self.least_versions.items():
            found = str(_import(package, self.extra).__version__)
            if version_tuple(found) < version_tuple(least):
                raise UnsafeFilesystemError(
                    "package is too old to create objects exclusively",
                    remedy=f"pip install -U '{requirement(self.extra)}'",
                    package=package,
                    found=found,
                    least=least,
                )

    def custom_endpoint(self, fs: Any) -> str | None:
        """Return the endpoint, without user name and query, if it is not the vendor's own."""
        parts = urlsplit(self.endpoint(fs))
        host = (parts.hostname or "").lower()
        if parts.scheme == "https" and host.endswith(self.own_hosts):
            return None
        return f"{parts.scheme}://{host}:{parts.port or ''}"

    @abstractmethod
    def endpoint(self, fs: Any) -> str:
        """Return the URL that requests go to; raises OSError if it cannot be determined."""

    @abstractmethod
    def is_taken(self, cause: BaseException) -> bool:
        """Tell whether the store itself said that the object of a failed create exists."""

    def read_whole(self, fs: Any, full: str) -> bytes:
        """Read an object, named by bucket and key, in one request."""
        content: bytes = fs.cat_file(full)
        return content

    @abstractmethod
    def first_keys(self, fs: Any, bucket: str, prefix: str, limit: int) -> list[str]:
        """Return up to `limit` keys of a folder, and its folders (with `/`), in one request.

        `prefix` is the folder with its `/`, or '' for the whole bucket. Raises FileNotFoundError if
        there is no such bucket.
        """

    def keys_from(self, fs: Any, bucket: str, prefix: str, start: str) -> list[str]:
        """Return the keys of a folder; those before `start` may be left out.

        `prefix` is the folder with its `/`. Raises FileNotFoundError if there is no such bucket.
        """
        del start
        fs.invalidate_cache()
        found = fs.find(f"{bucket}/{prefix}")
        return [name.removeprefix(f"{bucket}/") for name in found]

    def find(self, fs: Any, folder: str, start: str) -> list[tuple[str, int, datetime]]:
        """Return the objects below a folder, whose names begin with `start`: size and time.

        A name has its bucket. Empty, or raises FileNotFoundError, if there is no such bucket.
        """
        found = fs.find(folder, detail=True, **({"prefix": start} if start else {}))
        return [
            (name, *self.size_and_time(entry))
            for name, entry in found.items()
            if entry["type"] == "file"
        ]

    def folders(self, fs: Any, folder: str) -> list[str]:
        """Return the folders in a folder, with their bucket; FileNotFoundError if it is missing."""
        return [
            entry["name"] for entry in fs.ls(folder, detail=True) if entry["type"] == "directory"
        ]

    def head(self, fs: Any, full: str) -> tuple[int, datetime]:
        """Ask the store, and no cache, for an object's size in bytes and modification time."""
        fs.invalidate_cache()
        return self.size_and_time(fs.info(full))

    def size_and_time(self, entry: Mapping[str, Any]) -> tuple[int, datetime]:
        """Return size and time of a listing's entry; FileNotFoundError for a folder."""
        if entry["type"] != "file":
            raise FileNotFoundError(entry["name"])
        for name in ("LastModified", "last_modified", "mtime", "updated"):
            if when := entry.get(name):
                return entry["size"], _moment(when)
        raise OSError("the store reports no modification time")


class S3Store(ObjectStore):
    """Amazon S3 and stores with its protocol, through s3fs."""

    extra = "s3"
    module = "s3fs.core"
    class_name = "S3FileSystem"
    least_versions: ClassVar[Mapping[str, str]] = {"s3fs": "2025.7.0", "botocore": "1.35.20"}
    own_hosts = (".amazonaws.com", ".amazonaws.com.cn")
    other_names: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("aws_access_key_id", "access_key_id", "access_key"), "write key"),
        **dict.fromkeys(
            ("aws_secret_access_key", "secret_access_key", "secret_key"), "write secret"
        ),
        **dict.fromkeys(("aws_session_token", "session_token"), "write token"),
        **dict.fromkeys(("aws_endpoint_url", "aws_endpoint", "endpoint"), "write endpoint_url"),
        **dict.fromkeys(
            ("aws_region", "aws_default_region", "region", "region_name"),
            "write client_kwargs={'region_name': ...}",
        ),
        **dict.fromkeys(("aws_profile", "profile_name"), "write profile"),
        **dict.fromkeys(("aws_skip_signature", "skip_signature"), "write anon=True"),
        **dict.fromkeys(
            ("aws_allow_http", "allow_http"), "write nothing: endpoint_url begins with http://"
        ),
        **dict.fromkeys(
            ("aws_s3_allow_unsafe_rename", "aws_s3_locking_provider", "aws_conditional_put"),
            "write nothing: commits are conditional puts",
        ),
        "fs.s3a.access.key": "write key",
        "fs.s3a.secret.key": "write secret",
        "fs.s3a.endpoint": "write endpoint_url",
    }
    patience = frozenset({"connect_timeout", "read_timeout", "retries", "proxies"})
    copies = True
    equal_parts: ClassVar[str] = ".r2.cloudflarestorage.com"  # refuses parts of several sizes
    foreign_classes = (
        "botocore.exceptions.BotoCoreError",
        "botocore.exceptions.ClientError",
        "aiohttp.ClientError",
    )

    def connect(self, location: Location, options: Mapping[str, Any]) -> Any:  # noqa: D102
        fs = super().connect(location, options)
        # To know the endpoint, s3fs checks most options; it raises TypeError and the like.
        if self.equal_parts in self.endpoint(fs):
            fs.fixed_upload_size = True
        return fs

    def has_own_patience(self, options: Mapping[str, Any]) -> bool:  # noqa: D102
        return super().has_own_patience(options.get("config_kwargs") or {})

    def endpoint(self, fs: Any) -> str:  # noqa: D102
        # This includes settings from the environment or a profile.
        return str(fs.s3.meta.endpoint_url)

    def is_taken(self, cause: BaseException) -> bool:  # noqa: D102
        # 409 means that another request is in progress; it does not say that the name is taken.
        return _s3_code(cause) in ("PreconditionFailed", "412")

    def read_whole(self, fs: Any, full: str) -> bytes:  # noqa: D102
        # With more concurrency s3fs would ask for the size first.
        content: bytes = fs.cat_file(full, max_concurrency=1)
        return content

    def first_keys(self, fs: Any, bucket: str, prefix: str, limit: int) -> list[str]:  # noqa: D102
        answer = fs.call_s3(
            "list_objects_v2", Bucket=bucket, Prefix=prefix, Delimiter="/", MaxKeys=limit
        )
        found = [entry["Key"] for entry in answer.get("Contents", ())]
        return found + [entry["Prefix"] for entry in answer.get("CommonPrefixes", ())]

    def keys_from(self, fs: Any, bucket: str, prefix: str, start: str) -> list[str]:  # noqa: D102
        found: list[str] = []
        # StartAfter excludes its key; without the last character, a few more keys are listed.
        page = {"StartAfter": start[:-1]}
        while True:
            answer = fs.call_s3(
                "list_objects_v2", Bucket=bucket, Prefix=prefix, Delimiter="/", **page
            )
            found += [entry["Key"] for entry in answer.get("Contents", ())]
            if not answer.get("IsTruncated"):
                return found
            page = {"ContinuationToken": answer["NextContinuationToken"]}

    def head(self, fs: Any, full: str) -> tuple[int, datetime]:  # noqa: D102
        # Not fs.info: for a missing object it also lists the bucket.
        bucket, _, key = full.partition("/")
        answer = fs.call_s3("head_object", Bucket=bucket, Key=key)
        return answer["ContentLength"], answer["LastModified"]


class GcsStore(ObjectStore):
    """Google Cloud Storage through gcsfs."""

    extra = "gcs"
    # Not the class for zonal buckets: it ignores the condition of a create there.
    module = "gcsfs.core"
    class_name = "GCSFileSystem"
    least_versions: ClassVar[Mapping[str, str]] = {"gcsfs": "2024.12.0"}
    own_hosts = (".googleapis.com",)
    other_names: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            "google_service_account",
            "google_service_account_path",
            "google_service_account_key",
            "google_application_credentials",
            "service_account",
        ),
        "write token",
    )
    patience = frozenset({"requests_timeout", "timeout", "session_kwargs"})
    # gcsfs raises the built-in ones for answers that it can't parse, and for some refusals.
    foreign_classes = (
        "builtins.KeyError",
        "builtins.ValueError",
        "gcsfs.retry.HttpError",
        "gcsfs.retry.ChecksumError",
        "google.auth.exceptions.GoogleAuthError",
        "aiohttp.ClientError",
        "requests.exceptions.RequestException",
    )

    def endpoint(self, fs: Any) -> str:  # noqa: D102
        return str(fs.base)

    def first_keys(self, fs: Any, bucket: str, prefix: str, limit: int) -> list[str]:  # noqa: D102
        # Not fs.ls: it requests all pages of a folder.
        keys: list[str] = []
        asked: dict[str, Any] = {"delimiter": "/", "prefix": prefix or None}
        while True:
            asked["maxResults"] = limit - len(keys)
            page = fs.call("GET", "b/{}/o", bucket, json_out=True, **asked)
            keys += [entry["name"] for entry in page.get("items", ())] + page.get("prefixes", [])
            asked["pageToken"] = page.get("nextPageToken")  # also after a page without keys
            if asked["pageToken"] is None or len(keys) >= limit:
                return keys

    def keys_from(self, fs: Any, bucket: str, prefix: str, start: str) -> list[str]:  # noqa: D102
        found: list[str] = []
        page = {"prefix": prefix, "delimiter": "/", "startOffset": start}
        while True:
            answer = fs.call("GET", "b/{}/o", bucket, json_out=True, **page)
            found += [entry["name"] for entry in answer.get("items", ())]
            if "nextPageToken" not in answer:
                return found
            page["pageToken"] = answer["nextPageToken"]

    def is_taken(self, cause: BaseException) -> bool:  # noqa: D102
        return isinstance(cause, FileExistsError)


class AzureStore(ObjectStore):
    """Azure Blob Storage and Data Lake through adlfs."""

    extra = "azure"
    module = "adlfs.spec"
    class_name = "AzureBlobFileSystem"
    least_versions: ClassVar[Mapping[str, str]] = {"adlfs": "2024.12.0"}
    own_hosts = (".core.windows.net", ".core.chinacloudapi.cn", ".core.usgovcloudapi.net")
    other_names: ClassVar[Mapping[str, str]] = {
        "azure_storage_account_name": "write account_name",
        "azure_storage_account_key": "write account_key",
        "azure_storage_access_key": "write account_key",
        "azure_storage_connection_string": "write connection_string",
        "azure_storage_sas_token": "write sas_token",
        "azure_storage_client_id": "write client_id",
        "azure_storage_client_secret": "write client_secret",
        "azure_storage_tenant_id": "write tenant_id",
    }
    patience = frozenset({"timeout", "connection_timeout", "read_timeout"})
    # adlfs turns some failures into plain RuntimeErrors.
    foreign_classes = ("azure.core.exceptions.AzureError", "builtins.RuntimeError")

    def location_options(self, location: Location) -> dict[str, Any]:  # noqa: D102
        authority = location.url.removeprefix("abfs://").partition("/")[0]
        host = authority.partition("@")[2]
        if not host:
            return {}
        account, _, domain = host.partition(".")
        options = {"account_name": account}
        if domain not in ("dfs.core.windows.net", "blob.core.windows.net", ""):
            options["account_host"] = f"{account}.{domain.replace('dfs.', 'blob.', 1)}"
        return options

    def endpoint(self, fs: Any) -> str:  # noqa: D102
        return str(fs.service_client.url)

    # Listings are our own: adlfs takes an empty blob that marks a folder for a file, and walks
    # through all pages of a folder.
    def first_keys(self, fs: Any, bucket: str, prefix: str, limit: int) -> list[str]:  # noqa: D102
        return [blob.name for blob in self._blobs(fs, bucket, prefix, "walk_blobs", limit)]

    def keys_from(self, fs: Any, bucket: str, prefix: str, start: str) -> list[str]:  # noqa: D102
        del start
        return [blob.name for blob in self._blobs(fs, bucket, prefix)]

    def find(self, fs: Any, folder: str, start: str) -> list[tuple[str, int, datetime]]:  # noqa: D102
        bucket, _, key = folder.partition("/")
        found = self._blobs(fs, bucket, f"{key}/{start}" if key else start)
        return [(f"{bucket}/{blob.name}", blob.size, blob.last_modified) for blob in found]

    def folders(self, fs: Any, folder: str) -> list[str]:  # noqa: D102
        bucket, _, key = folder.partition("/")
        found = self._blobs(fs, bucket, f"{key}/" if key else "", "walk_blobs")
        return [f"{bucket}/{blob.name}" for blob in found if blob.name.endswith("/")]

    def _blobs(
        self, fs: Any, bucket: str, prefix: str, verb: str = "list_blobs", limit: int | None = None
    ) -> list[Any]:
        """Return blobs, and with `walk_blobs` folders, but no blobs that mark folders."""

        async def pages() -> list[Any]:
            found: list[Any] = []
            async with fs.service_client.get_container_client(container=bucket) as container:
                named = {"name_starts_with": prefix, "include": ["metadata"]}
                async for entry in getattr(container, verb)(**named, results_per_page=limit):
                    if not _marks_folder(entry):
                        found.append(entry)
                        if len(found) == limit:
                            break
            return found

        missing = _import("azure.core.exceptions", self.extra).ResourceNotFoundError
        try:
            blobs: list[Any] = sync(fs.loop, pages)
        except missing as cause:
            raise FileNotFoundError(bucket) from cause
        return blobs

    def is_taken(self, cause: BaseException) -> bool:  # noqa: D102
        # adlfs reports every conflict as an existing blob, even if a container is being deleted.
        return any(
            str(getattr(linked, "error_code", "")).endswith(("BlobAlreadyExists", "ALREADY_EXISTS"))
            for linked in chain(cause)
        )


STORES: Mapping[str, ObjectStore] = {"s3": S3Store(), "gs": GcsStore(), "abfs": AzureStore()}


def version_tuple(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a package's version, for comparisons.

    >>> version_tuple("2025.7.0rc1") < version_tuple("2025.10")
    True
    """
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _s3_code(cause: BaseException) -> str:
    for linked in chain(cause):
        response = getattr(linked, "response", None)
        if isinstance(response, Mapping):
            return str(response.get("Error", {}).get("Code", ""))
    return ""


def _marks_folder(blob: Any) -> bool:
    """Tell whether a blob of Azure stands for a folder; a walk's own folders have no size."""
    if getattr(blob, "size", None) is None:
        return False
    facts = {name.lower(): value for name, value in (blob.metadata or {}).items()}
    return blob.name.endswith("/") or "true" in (
        facts.get("hdi_isfolder"),
        facts.get("is_directory"),
    )


def _moment(when: Any) -> datetime:
    return datetime.fromisoformat(when) if isinstance(when, str) else when


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        raise InvalidInputError(
            "a package for this location is not installed",
            remedy=f"pip install '{requirement(extra)}'",
            module=module,
        ) from cause
