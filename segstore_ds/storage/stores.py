"""What differs between the object stores: their fsspec classes, versions, errors and requests.

Each store is opened through the exact class that was examined; a class that somebody registered
under the same scheme is not used, since most of fsspec accepts exclusive creation and ignores it.
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

FORBIDDEN = 403


class ObjectStore(ABC):
    """One kind of object store."""

    extra: ClassVar[str]
    module: ClassVar[str]
    class_name: ClassVar[str]
    least_versions: ClassVar[Mapping[str, str]]
    own_hosts: ClassVar[tuple[str, ...]]
    foreign_classes: ClassVar[tuple[str, ...]]
    other_names: ClassVar[Mapping[str, str]] = {}  # what other libraries call its options
    copies: ClassVar[bool] = False  # within the store, between any two buckets, tried by us

    def connect(self, location: Location, options: Mapping[str, Any]) -> Any:
        """Make the filesystem; no request is sent yet.

        Args:
            location: What it is for.
            options: Resolved options of the filesystem.

        Returns:
            An instance of fsspec's class, without listing caches.

        Raises:
            InvalidInputError: A package is missing.
        """
        self._refuse_other_names(options)
        cls = getattr(_import(self.module, self.extra), self.class_name)
        return cls(**{**self.location_options(location), **options, "use_listings_cache": False})

    def _refuse_other_names(self, options: Mapping[str, Any]) -> None:
        found = {name: self.other_names.get(name.lower()) for name in options}
        theirs = {name: ours for name, ours in found.items() if ours is not None}
        if theirs:
            raise InvalidInputError(
                "storage options are another library's",
                remedy=", ".join(f"for {name} {ours}" for name, ours in theirs.items()),
                options=sorted(theirs),
            )

    def location_options(self, location: Location) -> dict[str, Any]:  # noqa: ARG002
        """Options that the URL itself holds.

        Args:
            location: The place to be opened.

        Returns:
            Options of the filesystem.

        Raises:
            Nothing.
        """
        return {}

    def foreign(self) -> tuple[type[BaseException], ...]:
        """Name what this store's packages raise.

        Returns:
            Exception classes, for an except clause.

        Raises:
            InvalidInputError: A package is missing.
        """
        classes: list[type[BaseException]] = [OSError, TimeoutError]
        for name in self.foreign_classes:
            module, _, attribute = name.rpartition(".")
            classes.append(getattr(_import(module, self.extra), attribute))
        return tuple(classes)

    def check_versions(self) -> None:
        """Refuse packages from before exclusive create worked.

        Raises:
            UnsafeFilesystemError: A package is too old.
            InvalidInputError: A package is missing.
        """
        for package, least in self.least_versions.items():
            found = str(_import(package, self.extra).__version__)
            if version_tuple(found) < version_tuple(least):
                raise UnsafeFilesystemError(
                    "package is too old to create objects exclusively",
                    remedy=f"pip install -U 'segstore-ds[{self.extra}]'",
                    package=package,
                    found=found,
                    least=least,
                )

    def custom_endpoint(self, fs: Any) -> str | None:
        """Name the endpoint when it is not the vendor's own.

        Args:
            fs: The connected filesystem.

        Returns:
            The endpoint without user name and query, or None.

        Raises:
            OSError: The endpoint can't be found out.
        """
        parts = urlsplit(self.endpoint(fs))
        host = (parts.hostname or "").lower()
        if parts.scheme == "https" and host.endswith(self.own_hosts):
            return None
        return f"{parts.scheme}://{host}:{parts.port or ''}"

    @abstractmethod
    def endpoint(self, fs: Any) -> str:
        """Say where requests go.

        Args:
            fs: The connected filesystem.

        Returns:
            A URL.

        Raises:
            OSError: It can't be found out.
        """

    @abstractmethod
    def is_taken(self, cause: BaseException) -> bool:
        """Tell whether a failed create means, beyond doubt, that the name is taken.

        Args:
            cause: What the filesystem raised.

        Returns:
            True only for the store's own answer that the object exists.

        Raises:
            Nothing.
        """

    def read_whole(self, fs: Any, full: str) -> bytes:
        """Read an object in one request.

        Args:
            fs: The connected filesystem.
            full: Bucket and key.

        Returns:
            Its content.

        Raises:
            OSError: As the filesystem does.
        """
        content: bytes = fs.cat_file(full)
        return content

    @abstractmethod
    def first_keys(self, fs: Any, bucket: str, prefix: str, limit: int) -> list[str]:
        """List the first keys of a folder in one request.

        Args:
            fs: The connected filesystem.
            bucket: Bucket or container.
            prefix: The folder with its `/`, or '' for the whole bucket.
            limit: Most of them.

        Returns:
            Keys, and the folders in the folder, which end with `/`.

        Raises:
            OSError: As the filesystem does.
        """

    def head(self, fs: Any, full: str) -> tuple[int, datetime]:
        """Ask for size and time of an object, past every cache.

        Args:
            fs: The connected filesystem.
            full: Bucket and key.

        Returns:
            Size in bytes and the store's time of the last change.

        Raises:
            FileNotFoundError: There is no such object.
        """
        fs.invalidate_cache()
        return self.size_and_time(fs.info(full))

    def size_and_time(self, entry: Mapping[str, Any]) -> tuple[int, datetime]:
        """Read an entry of a listing.

        Args:
            entry: As fsspec gives it.

        Returns:
            Size in bytes and the store's time of the last change.

        Raises:
            FileNotFoundError: It is a folder.
        """
        if entry["type"] != "file":
            raise FileNotFoundError(entry["name"])
        for name in ("LastModified", "last_modified", "mtime", "updated"):
            when = entry.get(name)
            if when:
                return entry["size"], _moment(when)
        raise OSError("the store gives no time of change")


class S3Store(ObjectStore):
    """Amazon S3 and what speaks its protocol, through s3fs."""

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
    copies = True
    foreign_classes = (
        "botocore.exceptions.BotoCoreError",
        "botocore.exceptions.ClientError",
        "aiohttp.ClientError",
    )

    def connect(self, location: Location, options: Mapping[str, Any]) -> Any:  # noqa: D102
        fs = super().connect(location, options)
        # s3fs looks at most options only now, and raises what a wrong call of Python raises.
        _ = fs.s3
        return fs

    def endpoint(self, fs: Any) -> str:  # noqa: D102
        # The client knows also what came from the environment or a profile.
        return str(fs.s3.meta.endpoint_url)

    def is_taken(self, cause: BaseException) -> bool:  # noqa: D102
        # 409 means that another request is under way and decides nothing.
        return _s3_code(cause) in ("PreconditionFailed", "412")

    def read_whole(self, fs: Any, full: str) -> bytes:  # noqa: D102
        # With its own concurrency s3fs asks for the size first.
        content: bytes = fs.cat_file(full, max_concurrency=1)
        return content

    def first_keys(self, fs: Any, bucket: str, prefix: str, limit: int) -> list[str]:  # noqa: D102
        answer = fs.call_s3(
            "list_objects_v2", Bucket=bucket, Prefix=prefix, Delimiter="/", MaxKeys=limit
        )
        found = [entry["Key"] for entry in answer.get("Contents", ())]
        return found + [entry["Prefix"] for entry in answer.get("CommonPrefixes", ())]

    def head(self, fs: Any, full: str) -> tuple[int, datetime]:  # noqa: D102
        # Not fs.info: for a missing object that lists the bucket too.
        bucket, _, key = full.partition("/")
        answer = fs.call_s3("head_object", Bucket=bucket, Key=key)
        return answer["ContentLength"], answer["LastModified"]


class GcsStore(ObjectStore):
    """Google Cloud Storage through gcsfs."""

    extra = "gcs"
    # Not the class for zonal buckets, which drops the condition of a create there.
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
    foreign_classes = (
        "gcsfs.retry.HttpError",
        "gcsfs.retry.ChecksumError",
        "google.auth.exceptions.GoogleAuthError",
        "aiohttp.ClientError",
        "requests.exceptions.RequestException",
    )

    def endpoint(self, fs: Any) -> str:  # noqa: D102
        return str(fs.base)

    def first_keys(self, fs: Any, bucket: str, prefix: str, limit: int) -> list[str]:  # noqa: D102
        # Not fs.ls, which asks for all of a folder's pages.
        place = f"{bucket}/{prefix}"
        listed = sync(fs.loop, fs._do_list_objects, place, max_results=limit)  # noqa: SLF001
        objects, folders = listed
        return [entry["name"].removeprefix(f"{bucket}/") for entry in objects] + list(folders)

    def is_taken(self, cause: BaseException) -> bool:  # noqa: D102
        return isinstance(cause, FileExistsError)


class AzureStore(ObjectStore):
    """Azure Blob Storage and Data Lake through adlfs."""

    extra = "azure"
    module = "adlfs.spec"
    class_name = "AzureBlobFileSystem"
    least_versions: ClassVar[Mapping[str, str]] = {"adlfs": "2024.12.0"}
    own_hosts = (
        ".core.windows.net",
        ".core.chinacloudapi.cn",
        ".core.usgovcloudapi.net",
    )
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

    def first_keys(self, fs: Any, bucket: str, prefix: str, limit: int) -> list[str]:  # noqa: D102
        async def first_page() -> list[str]:
            found: list[str] = []
            async with fs.service_client.get_container_client(container=bucket) as container:
                # Not fs.ls, which asks for all of a folder's pages.
                listed = container.walk_blobs(name_starts_with=prefix, results_per_page=limit)
                async for entry in listed:
                    found.append(entry.name)
                    if len(found) == limit:
                        break
            return found

        keys: list[str] = sync(fs.loop, first_page)
        return keys

    def is_taken(self, cause: BaseException) -> bool:  # noqa: D102
        # adlfs reports any conflict as existing, a container being deleted too.
        return any(
            str(getattr(linked, "error_code", "")).endswith(("BlobAlreadyExists", "ALREADY_EXISTS"))
            for linked in chain(cause)
        )


STORES: Mapping[str, ObjectStore] = {"s3": S3Store(), "gs": GcsStore(), "abfs": AzureStore()}


def root_is_missing(cause: BaseException) -> bool:
    """Tell whether a store said that the bucket or container itself is absent.

    Args:
        cause: What the filesystem raised.

    Returns:
        True when it said so; a HEAD request can't tell.

    Raises:
        Nothing.
    """
    codes = {_s3_code(cause)}
    codes.update(str(getattr(linked, "error_code", "")) for linked in chain(cause))
    return bool(
        codes & {"NoSuchBucket", "ContainerNotFound", "StorageErrorCode.CONTAINER_NOT_FOUND"}
    )


def is_denied(error: BaseException) -> bool:
    """Tell whether a filesystem failed because the caller may not do what was asked.

    >>> is_denied(PermissionError()), is_denied(FileNotFoundError())
    (True, False)
    """
    return any(
        isinstance(linked, PermissionError)
        or getattr(linked, "status_code", None) == FORBIDDEN
        # gcsfs raises a plain OSError, and a stand-in for a secret's sake keeps the text alone.
        or str(linked).startswith(("Forbidden", "PermissionError"))
        for linked in chain(error)
    )


def version_tuple(text: str) -> tuple[int, ...]:
    """Read the leading numbers of a package's version.

    Args:
        text: A version.

    Returns:
        Its numbers, comparable.

    Raises:
        Nothing.

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


def _moment(when: Any) -> datetime:
    return datetime.fromisoformat(when) if isinstance(when, str) else when


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        raise InvalidInputError(
            "a package for this location is not installed",
            remedy=f"pip install 'segstore-ds[{extra}]'",
            module=module,
        ) from cause
