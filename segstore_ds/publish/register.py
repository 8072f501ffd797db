"""Tells a catalog that keeps a pointer where an Iceberg table's newest metadata is, by pyiceberg.

The stream needs no catalog, and no commit waits for one: it is told after the commit, best effort.
A table of the same name that is another one is left alone.
"""

from collections.abc import Mapping
from typing import Any

from segstore_ds.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from segstore_ds.version import requirement


def open_catalog(catalog: Any, table: str | None) -> tuple[Any, str]:
    """Return pyiceberg's catalog, by its name there, its properties, or itself; and the table."""
    try:
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - an extra
        from pyiceberg.exceptions import NotInstalledError  # noqa: PLC0415
    except ImportError as cause:
        raise InvalidInputError(
            "registering a table in a catalog needs pyiceberg",
            remedy=f"pip install '{requirement('catalog')}'",
        ) from cause
    if not table or "." not in table:
        raise InvalidInputError(
            "no table of the catalog is named", remedy='add table="namespace.name"', table=table
        )
    try:
        if isinstance(catalog, str):
            return load_catalog(catalog), table
        if isinstance(catalog, Mapping):
            return load_catalog(**catalog), table
    except (ValueError, NotInstalledError) as cause:
        name = catalog if isinstance(catalog, str) else "given by properties"  # with secrets
        raise InvalidInputError(
            "the catalog can't be opened",
            remedy="give its name in pyiceberg's configuration, or its properties as a dict",
            catalog=name,
        ) from cause
    return catalog, table


def register(catalog: Any, table: str, metadata: str, table_uuid: str) -> None:
    """Make a catalog's table point to metadata; make the table if there is none.

    A Glue catalog changes its table's property, and a REST catalog that can do so its pointer.
    In other catalogs the table is dropped, which deletes nothing, and registered again at once.
    """
    from pyiceberg.exceptions import (  # noqa: PLC0415 - an extra
        BadRequestError,
        NoSuchNamespaceError,
        TableAlreadyExistsError,
    )

    if not catalog.table_exists(table):
        try:
            catalog.register_table(table, metadata)
        except NoSuchNamespaceError as cause:
            raise NotFoundError(
                "the catalog has no such namespace",
                remedy="create it, as catalog.create_namespace(name) of pyiceberg does",
                table=table,
            ) from cause
        return
    found = catalog.load_table(table)
    if str(found.metadata.table_uuid) != table_uuid:
        raise AlreadyExistsError(
            "the catalog has another table of that name", remedy="use another name", table=table
        )
    if found.metadata_location == metadata:
        return
    if hasattr(catalog, "glue"):
        _point(catalog.glue, table, metadata)
        return
    try:
        catalog.register_table(table, metadata, overwrite=True)
    except (NotImplementedError, BadRequestError, TableAlreadyExistsError):
        catalog.drop_table(table)
        catalog.register_table(table, metadata)


def _point(glue: Any, table: str, metadata: str) -> None:
    """Change where a table of Glue has its metadata, unless another client changes it."""
    database, name = table.rsplit(".", 1)
    found = glue.get_table(DatabaseName=database, Name=name)["Table"]
    keys = ("Name", "Description", "Owner", "TableType", "StorageDescriptor", "Parameters")
    values = {key: found[key] for key in keys if key in found}
    old = values["Parameters"]
    values["Parameters"] = {
        **old,
        "metadata_location": metadata,
        "previous_metadata_location": old["metadata_location"],
    }
    version = {"VersionId": found["VersionId"]} if "VersionId" in found else {}
    glue.update_table(DatabaseName=database, TableInput=values, SkipArchive=True, **version)
