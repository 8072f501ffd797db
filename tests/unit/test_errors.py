"""The tree of errors: pinned, because callers catch by class and read codes."""

import copy
import inspect
import pickle

import pytest

from segstore_ds import errors
from segstore_ds.errors import SegstoreError

# Class -> (parent, code, retryable). Append only: codes are in logs and runbooks.
TREE = {
    "AlreadyExistsError": ("SegstoreError", "SEG_ALREADY_EXISTS", False),
    "ClosedError": ("SegstoreError", "SEG_CLOSED", False),
    "CommitUnknownError": ("SegstoreError", "SEG_COMMIT_UNKNOWN", False),
    "ConflictError": ("SegstoreError", "SEG_CONFLICT", True),
    "CorruptionError": ("FormatError", "SEG_CORRUPTION", False),
    "EmptyObjectError": ("FormatError", "SEG_EMPTY_OBJECT", False),
    "FormatError": ("SegstoreError", "SEG_FORMAT", False),
    "InternalError": ("SegstoreError", "SEG_INTERNAL", False),
    "InvalidInputError": ("SegstoreError", "SEG_INVALID_INPUT", False),
    "MissingObjectError": ("FormatError", "SEG_MISSING_OBJECT", False),
    "NotFoundError": ("SegstoreError", "SEG_NOT_FOUND", False),
    "PositionError": ("SegstoreError", "SEG_POSITION", False),
    "SchemaMismatchError": ("InvalidInputError", "SEG_SCHEMA_MISMATCH", False),
    "SealedError": ("SegstoreError", "SEG_SEALED", False),
    "SnapshotExpiredError": ("SegstoreError", "SEG_SNAPSHOT_EXPIRED", False),
    "StagedExpiredError": ("ConflictError", "SEG_STAGED_EXPIRED", True),
    "StorageError": ("SegstoreError", "SEG_STORAGE", True),
    "TruncatedError": ("SegstoreError", "SEG_TRUNCATED", False),
    "TruncatedObjectError": ("FormatError", "SEG_TRUNCATED_OBJECT", False),
    "UnderReplicatedError": ("SegstoreError", "SEG_UNDER_REPLICATED", False),
    "FencedError": ("SegstoreError", "SEG_FENCED", False),
    "UnsafeFilesystemError": ("StorageError", "SEG_UNSAFE_FILESYSTEM", False),
    "UnsupportedVersionError": ("FormatError", "SEG_UNSUPPORTED_VERSION", False),
    "WriterConflictError": ("ConflictError", "SEG_WRITER_CONFLICT", False),
    "ReaderConflictError": ("ConflictError", "SEG_READER_CONFLICT", False),
    "LeaseLostError": ("ConflictError", "SEG_LEASE_LOST", True),
}
CLASSES = {
    name: member
    for name, member in inspect.getmembers(errors, inspect.isclass)
    if issubclass(member, SegstoreError) and member is not SegstoreError
}


def test_the_tree_is_pinned() -> None:
    """Each class has its parent, its code and its retryability; codes are unique."""
    found = {
        name: (cls.__bases__[0].__name__, cls.code, cls.retryable) for name, cls in CLASSES.items()
    }
    assert found == TREE
    assert len({code for _, code, _ in TREE.values()}) == len(TREE)
    assert issubclass(errors.InvalidInputError, ValueError)
    assert issubclass(errors.NotFoundError, LookupError)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_error_pickles_with_its_fields(name: str) -> None:
    """What a Spark worker raises arrives whole at the driver."""
    error = CLASSES[name]("a fact", remedy="do this", number=1, name="x", blob=b"\x00", none=None)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301
        assert type(twin) is type(error)
        assert (str(twin), twin.fields, twin.fact, twin.remedy) == (
            str(error),
            error.fields,
            error.fact,
            error.remedy,
        )
    text = f"{CLASSES[name].code}: a fact: number=1, name='x', blob=b'\\x00', none=None; do this"
    assert str(error) == text


def test_default_remedy_is_shown() -> None:
    """Where a class has advice of its own, an error without one shows it."""
    assert str(errors.ConflictError("x")).endswith("; read the stream again and repeat")
    assert str(errors.InvalidInputError("x")) == "SEG_INVALID_INPUT: x"
    for name, (parent, *_) in TREE.items():
        if parent == "FormatError" and name != "UnsupportedVersionError":
            assert "segstore.repair(url)" in str(CLASSES[name]("a part is lost")), name


def test_docstring_draws_every_class() -> None:
    """The picture at the top of the module shows each class once."""
    for name in TREE:
        assert errors.__doc__.count(f"─ {name}") == 1, name
