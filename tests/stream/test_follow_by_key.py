"""Members that share a reader by key: the events of a key go to one at a time, in order."""

from collections import Counter
from dataclasses import replace
from decimal import Decimal, localcontext
from itertools import chain

import pyarrow as pa
import pytest
from member_kit import LEASE_S, drain, poll, record
from stream_kit import make_stream, wait

from segstore_ds.errors import InvalidInputError, LeaseLostError, ReaderConflictError
from segstore_ds.format.reader_record import Delivery, KeyShare, ReaderRecord
from segstore_ds.retention.key_share import BUCKETS, KeyBasis, basis_of, bucket_of, turn_of

KEYS = 20


def events(start, end):
    """Return events whose key `s` goes round."""
    rows = range(start, end)
    return pa.table({"n": list(rows), "s": [f"k{n % KEYS}" for n in rows]})


def make(count=200):
    stream, storage = make_stream(0)
    for start in range(0, count, 50):
        stream.append(events(start, start + 50))
    return stream, storage


def join(stream, member, **how):
    return stream.follow("billing", **{"member": member, "key": ["s"], "lease": LEASE_S, **how})


def by_key(numbers):
    found = {}
    for n in numbers:
        found.setdefault(n % KEYS, []).append(n)
    return found


def test_each_key_is_with_one_member():
    stream, storage = make(0)
    follows = [join(stream, name) for name in "abc"]
    for _ in range(LEASE_S):
        drain(*follows)
    for start in range(0, 400, 50):
        stream.append(events(start, start + 50))
    found = drain(*follows)
    assert sorted(chain.from_iterable(found)) == list(range(400))
    assert all(found)
    holders = Counter(chain.from_iterable(by_key(got) for got in found))
    assert set(holders.values()) == {1}
    assert all(got == sorted(got) for got in found)
    wait(storage, LEASE_S / 2)
    drain(*follows)
    assert stream.position("reader:billing").offset == 400
    assert sorted(Counter(record(stream).by_key.holders).values()) == [20, 22, 22]


def test_a_new_member_goes_on_where_keys_were_done():
    """What the first has in its hands stays its own until it asks for the next batch."""
    stream, storage = make()
    first = join(stream, "a", max_rows=50)
    assert poll(first) == list(range(50))
    second = join(stream, "b")
    wait(storage, 2)
    assert poll(second) is None
    first.renew()
    wait(storage, 2)
    assert poll(second) is None
    found = drain(first, second)
    assert sorted(chain.from_iterable(found)) == list(range(50, 200))
    assert all(found)
    assert not by_key(found[0]).keys() & by_key(found[1]).keys() or all(
        max(by_key(found[0]).get(key, [-1])) < min(numbers)
        for key, numbers in by_key(found[1]).items()
    )


def test_keys_that_came_free_are_read_from_where_they_are_done():
    """A member takes over a key whose events it has passed without a record of that."""
    stream, storage = make(0)
    first, second = join(stream, "a"), join(stream, "b", max_rows=1)
    for _ in range(LEASE_S):
        drain(first, second)
    holders = record(stream).by_key.holders
    keys = bucket_of(events(0, KEYS).to_batches()[0], ["s"], BUCKETS)
    own, other = (next(n for n in range(KEYS) if holders[keys[n]] == name) for name in "ab")
    wait(storage, 2)
    stream.append(events(own, own + 1))
    assert poll(first) == [own]
    for _ in range(3):
        stream.append(events(other, other + 1))
    wait(storage, 0.7)  # it looks at what others do once a second
    assert poll(first) is None
    assert poll(second) == poll(second) == [other]
    second.close()
    wait(storage, 0.5)
    (rest,) = drain(first, step_s=0.1)
    assert rest == [other] * 2


@pytest.mark.parametrize("columns", [None, ["n"], ["s", "n"]])
def test_columns_and_filters_are_those_asked_for(columns):
    stream, _storage = make()
    follow = join(stream, "a", columns=columns, filters=[["n", ">=", 150]])
    batch = follow._take()
    assert batch.schema.names == (columns or ["n", "s"])
    assert batch["n"].to_pylist() == list(range(150, 200))


def test_members_agree_on_the_key():
    stream, _storage = make()
    join(stream, "a")
    for key in (None, ["n"]):
        with pytest.raises(ReaderConflictError, match="by another key"):
            join(stream, "b", key=key)
    for key in ([], ["x"], ["n", "x"]):
        with pytest.raises(InvalidInputError, match="can't be the key"):
            join(stream, "b", key=key)
    with pytest.raises(InvalidInputError, match="only members"):
        stream.follow("other", key=["s"])


def test_the_way_of_sharing_may_change_without_members():
    """Nothing is lost; what was done beyond the position may come again."""
    stream, _storage = make()
    first = join(stream, "a", max_rows=50)
    assert poll(first) == list(range(50))
    assert poll(first) == list(range(50, 100))
    first.close()
    second = join(stream, "a", key=None)
    assert drain(second) == [list(range(50, 200))]
    second.close()
    stream.append(events(200, 210))
    assert drain(join(stream, "b")) == [list(range(200, 210))]


def test_truncated_events_are_no_more_asked_for():
    stream, _storage = make()
    follow = join(stream, "a", max_rows=50)
    poll(follow)
    stream.truncate(120)
    follow.close()
    again = join(stream, "a", start="head")
    assert drain(again) == [list(range(120, 200))]
    assert min(record(stream).by_key.positions) >= 120


def test_buckets_go_by_values():
    """Nulls, wider types and other orders of values change no bucket."""
    narrow = pa.record_batch({"k": pa.array([1, None, 3], pa.int32())})
    wide = pa.record_batch({"k": pa.array([3, 1, None], pa.int64())})
    first, second = (bucket_of(batch, ["k"], BUCKETS).tolist() for batch in (narrow, wide))
    assert first == [second[1], second[2], second[0]]
    few, more = ([Decimal(text) for text in texts] for texts in (["1.10", "20"], ["1.1000", "20"]))
    for before, after in ((few, more), ([100, 0], [100.0, -0.0])):
        batches = [pa.record_batch({"k": column}) for column in (before, after)]
        assert batches[0].schema != batches[1].schema
        assert len({tuple(bucket_of(batch, ["k"], BUCKETS)) for batch in batches}) == 1
    with localcontext() as context:
        context.prec = 3
        exact = [Decimal("123456.78"), Decimal("123456.79"), Decimal("9E+3")]
        batch = pa.record_batch({"k": pa.array(exact, pa.decimal128(20, 2))})
        rounded = bucket_of(batch, ["k"], 1 << 20).tolist()
    assert rounded == bucket_of(batch, ["k"], 1 << 20).tolist()
    assert len({*rounded}) == 3
    many = pa.record_batch(
        {"k": [f"user-{n}" for n in range(10_000)], "l": [n % 7 for n in range(10_000)]}
    )
    for key in (["k"], ["k", "l"]):
        spread = Counter(bucket_of(many, key, BUCKETS).tolist())
        assert len(spread) == BUCKETS
        assert max(spread.values()) < 1.5 * 10_000 / BUCKETS


@pytest.mark.parametrize(
    "kind", ["date32", "time64[ns]", "timestamp[us]", "timestamp[ns]", "duration[ns]", "time32[ms]"]
)
def test_buckets_of_times_go_by_their_stored_integers(kind):
    """Python can't hold all of them, and nanoseconds only with pandas."""
    times, bits = pa.type_for_alias(kind), pa.type_for_alias(kind).bit_width
    numbers = pa.array([0, 1, (1 << (bits - 2)) + 1], {32: pa.int32(), 64: pa.int64()}[bits])
    found = (pa.record_batch({"k": each}) for each in (numbers, numbers.view(times)))
    first, second = (bucket_of(batch, ["k"], 1 << 20).tolist() for batch in found)
    assert first == second


def test_only_what_may_change_the_key_begins_again():
    """An expiry of another column does not, a redaction may, as it does not say of which it was."""
    stream, storage = make(50)
    assert basis_of(stream.refresh()._log.root, ["s"]) == KeyBasis(("s",), 0)
    stream.settings.update(expiry={"s": "1d"})
    wait(storage, 3 * 86_400)
    stream.maintain()
    root = stream.refresh()._log.root
    assert basis_of(root, ["s"]).since > 0
    assert basis_of(root, ["n"]) == KeyBasis(("n",), 0)
    stream.redact([["n", "==", 1]], columns=["s"], redact_id="r")
    assert basis_of(stream.refresh()._log.root, ["n"]).since > 0


def test_what_is_left_of_a_delivery_begins_where_its_keys_are_done():
    """Found in simulation, by the seed 20261129305: retention had dropped what lay before."""
    lost = [Delivery(5, 30, 1, "c", buckets=[1, 3])]
    share = KeyShare(["s"], [15, 15, 20, 20], ["a", "a", "a", "a"])
    record = ReaderRecord("id", 0, 15, "", 60, by_key=share, deliveries=lost)
    turn = turn_of(record, share, "a", [])
    assert (turn.start, turn.end) == (15, 30)
    assert turn.delivery == replace(lost[0], start=15)


def test_keys_of_a_dead_member_come_again_in_order():
    stream, _storage = make(0)
    dead, other = join(stream, "a"), join(stream, "b")
    drain(dead, other)
    stream.append(events(0, 100))
    lost = poll(dead)
    assert lost
    (first,) = drain(other)
    assert sorted(lost + first) == list(range(100))
    stream.append(events(100, 200))
    (rest,) = drain(other)
    for _ in range(LEASE_S):
        (more,) = drain(other)
        rest += more
    found = by_key(rest)
    assert sorted(first + rest) == list(range(200))
    assert all(numbers == sorted(numbers) for numbers in found.values())
    with pytest.raises(LeaseLostError):
        poll(dead)


def test_leaving_frees_the_keys_at_once():
    stream, storage = make()
    first, second = join(stream, "a"), join(stream, "b")
    drain(first, second)
    first.close()
    wait(storage, 2)
    stream.append(events(200, 300))
    assert drain(second) == [list(range(200, 300))]
