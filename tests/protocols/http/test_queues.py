"""The concatenated JSON of jobs matches its declaration."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from millstream.protocols.http.queues import ClaimAnswer, JobShape, claim_json, job_json, jobs_json
from millstream.protocols.http.records import RequestCost
from millstream.protocols.http.values import text_bytes, value_bytes
from millstream.records.record import StoredRecord

NUMBERS = st.integers(0, 2**53)
RECORDS = st.builds(
    StoredRecord,
    offset=NUMBERS,
    timestamp_ms=NUMBERS,
    key=st.none() | st.binary(max_size=30),
    value=st.none() | st.binary(max_size=100) | st.sampled_from([b'{"a": 1}', b"[\n1]", b"null"]),
    headers=st.just(()) | st.just((("a", b"1"), ("a", None), ("millstream-node", b"n1"))),
)


@given(receipt=st.text(max_size=60), record=RECORDS, deliveries=NUMBERS, deadline=NUMBERS)
def test_a_job_keeps_its_meaning_and_fits_on_a_line(
    receipt: str, record: StoredRecord, deliveries: int, deadline: int
) -> None:
    encoded = job_json(receipt, 3, record, deliveries=deliveries, deadline_ms=deadline)
    assert b"\n" not in encoded
    assert b"\r" not in encoded
    job = msgspec.json.decode(encoded, type=JobShape)
    assert (job.receipt, job.partition, job.offset) == (receipt, 3, record.offset)
    assert (job.deliveries, job.deadline_ms) == (deliveries, deadline)
    assert job.timestamp == record.timestamp_ms
    assert text_bytes(job.key) == record.key
    found = value_bytes(job.value)
    assert found == record.value or found == (record.value or b"").replace(b"\n", b" ").strip()
    assert job.node == ("n1" if record.headers else msgspec.UNSET)


def test_the_answer_of_a_claim_has_its_jobs_and_its_cost() -> None:
    record = StoredRecord(7, 1, None, b"{}")
    job = job_json("r", 0, record, deliveries=1, deadline_ms=30_000)
    for jobs in ([], [job], [job, job]):
        answer = msgspec.json.decode(claim_json(jobs, RequestCost(fsync_ms=0.5)), type=ClaimAnswer)
        assert len(answer.jobs) == len(jobs)
        assert answer.cost.fsync_ms == 0.5
        assert len(msgspec.json.decode(jobs_json(jobs))["jobs"]) == len(jobs)
