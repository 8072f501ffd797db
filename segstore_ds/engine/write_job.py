"""A writing job: what the planner decides once and every task and the commit share."""

from dataclasses import dataclass, field

import pyarrow as pa

from segstore_ds.engine.append import AppendPlan, WriterKey
from segstore_ds.engine.epochs import SchemaChange
from segstore_ds.engine.staging import Layout, StagedSegment, TaskStager
from segstore_ds.format.schema import decode_schema
from segstore_ds.storage import Storage


@dataclass(frozen=True, slots=True)
class WriteJob:
    """One logical write; picklable, so it can be planned here and staged anywhere.

    Attributes:
        storage: The stream's folder; pickles without its connections.
        token: The folder of this job's staged objects.
        transaction: The id of the one commit, kept over every attempt and rebase.
        schema_text: What incoming batches are conformed to and encoded in.
        repeated: The writer's batch was committed before; there is nothing to stage.
    """

    storage: Storage = field(repr=False)
    token: str
    transaction: str
    schema_text: str = field(repr=False)
    layout: Layout
    spark: str | None = field(default=None, repr=False)
    merge_schema: bool = False
    replace_schema: bool = False
    writer: WriterKey | None = None
    overwrite_to: int | None = None
    expected_tail: int | None = None
    expected_version: int | None = None
    client: str = ""
    repeated: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The schema that batches have to have when they are staged."""
        return decode_schema(self.schema_text)

    def open_task(self, task: int, attempt: str) -> TaskStager:
        """Begin to stage the output of a task.

        Args:
            task: Its place in the job, which decides the order of events.
            attempt: Letters, digits and dashes that no other attempt of any task shares.
        """
        return TaskStager(
            self.storage,
            self.schema,
            self.layout,
            token=self.token,
            task=task,
            attempt=attempt,
            count_only=self.repeated,
        )

    def append_plan(self, segments: tuple[StagedSegment, ...], rows: int) -> AppendPlan:
        """Return what has to be committed once these segments are staged from that many rows."""
        return AppendPlan(
            token=self.token,
            segments=segments,
            rows=rows,
            schema=SchemaChange(self.schema, self.spark, self.merge_schema, self.replace_schema),
            writer=self.writer,
            overwrite_to=self.overwrite_to,
            expected_tail=self.expected_tail,
            expected_version=self.expected_version,
            client=self.client,
        )
