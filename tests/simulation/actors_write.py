"""Actors that write: appends, jobs of several processes, overwrites, idempotent writers."""

import pyarrow as pa
from sim_actor import SCHEMA, Actor, maybe_committed, table_of
from sim_ledger import Batch

from segstore_ds.errors import SegstoreError
from segstore_ds.status.writers import Commit
from segstore_ds.write.inputs import writer_key
from segstore_ds.write.job import WriteJob
from segstore_ds.write.layout import Layout
from segstore_ds.write.staged import StagedTask


class Appender(Actor):
    """Appends batches, and gives up a batch that failed."""

    sent = 0

    def step(self) -> None:
        if self.chance.random() < 0.1:
            self.stream = self.open()
        self.sent += 1
        count = self.chance.choice((1, 1, 2, 5, 20))
        ids = tuple(f"{self.name}:{self.sent}:{place}" for place in range(count))
        batch = self.ledger.begin(ids)
        try:
            done = self.write(batch, table_of(ids, self.chance))
        except SegstoreError as error:
            if not maybe_committed(error):
                self.ledger.fail(batch)
            raise
        self.ledger.ack(batch, done.start, done.end)

    def write(self, _: Batch, rows: pa.Table) -> Commit:
        """Write a batch."""
        return self.stream.append(rows, layout=self.a_layout())


class Job(Actor):
    """Plans a write, stages it as a task of another process would, and commits it much later."""

    pace = 5.0
    number = 0

    def step(self) -> None:
        self.number += 1
        ids = tuple(f"{self.name}:{self.number}:{place}" for place in range(6))
        batch = self.ledger.begin(ids)
        try:
            job = self.stream.plan_write(SCHEMA, layout=Layout(inline_bytes=0, segment_rows=3))
            task = job.open_task(0, f"try{self.number}")
            for rows in table_of(ids, self.chance).to_batches(max_chunksize=2):
                task.append(rows)
            staged = task.finish()
            self.world.sleep(self.chance.choice((0.0, 60.0, 7200.0, 100_000.0)))
            done = self.stream.commit(job, [staged])
        except SegstoreError as error:
            if not maybe_committed(error):
                self.ledger.fail(batch)
            raise
        self.ledger.ack(batch, done.start, done.end)


class Overwriter(Appender):
    """Overwrites now and then, up to the tail as of its plan."""

    pace = 20.0

    def write(self, batch: Batch, rows: pa.Table) -> Commit:
        job = self.stream.plan_write(SCHEMA, overwrite=True, layout=self.a_layout())
        batch.drops = self.stream.tail
        self.ledger.drop(batch.drops)
        task = job.open_task(0, f"try{self.sent}")
        for each in rows.to_batches():
            task.append(each)
        staged = task.finish()
        self.world.sleep(self.chance.choice((0.0, 0.0, 60.0, 2000.0)))
        return self.stream.commit(job, [staged])


class Writer(Actor):
    """An idempotent writer: repeats a batch until it is acknowledged, also after a kill."""

    number = 0
    batch: Batch | None = None

    def step(self) -> None:
        if self.batch is None:
            count = self.chance.choice((1, 3, 10))
            self.number += 1
            ids = tuple(f"{self.name}:{self.number}:{place}" for place in range(count))
            self.batch = self.ledger.begin(ids, writer=self.name)
        rows = table_of(self.batch.ids)
        done = self.stream.append(
            rows, writer_id=self.name, batch_id=self.number, layout=self.a_layout()
        )
        self.ledger.ack(self.batch, done.start, done.end)
        if self.chance.random() < 0.8:  # else it forgets that it was answered
            self.batch = None

    def finish(self) -> None:
        if self.batch is not None:
            self.stream = self.open()
            self.step()
            self.batch = None


class Sink(Writer):
    """A query's sink: fresh handles, tasks that are tried twice, batches that are planned again."""

    pace = 3.0

    def step(self) -> None:
        if self.batch is None:
            self.number += 1
            ids = tuple(f"{self.name}:{self.number}:{place}" for place in range(6))
            self.batch = self.ledger.begin(ids, writer=self.name)
        rows = table_of(self.batch.ids)
        key = writer_key(self.name, self.number, takeover=self.chance.random() < 0.1)
        job = self.open().plan_write(SCHEMA, writer=key, layout=Layout(inline_bytes=0))
        if job.repeated:
            done = self.open().append(rows, writer_id=self.name, batch_id=self.number)
        else:
            tries = [self.stage(job, rows, part) for part in (0, 0, 1, 1)]
            chosen = [self.chance.choice(tries[:2]), self.chance.choice(tries[2:])]
            self.world.sleep(self.chance.choice((0.0, 0.0, 60.0, 7200.0)))
            done = self.open().commit(job, chosen)
        self.ledger.ack(self.batch, done.start, done.end)
        if self.chance.random() < 0.8:
            self.batch = None

    def stage(self, job: WriteJob, rows: pa.Table, part: int) -> StagedTask:
        """Stage half of a batch, as one attempt of a task."""
        task = job.open_task(part, f"try{self.chance.randrange(1 << 30)}")
        for batch in rows.slice(3 * part, 3).to_batches():
            task.append(batch)
        return task.finish()
