"""The jobs that a worker has claimed."""

from __future__ import annotations

from millstream.clients.http.core.queues.claimed_jobs import ClaimedJobs
from millstream.clients.http.core.queues.worker_job import WorkerJob
from millstream.clients.http.core.values import ClaimedJob, TopicRecord


def job(number, lease_ms=10_000):
    record = TopicRecord(
        topic="q", partition=0, offset=number, timestamp_ms=0, key=None, raw=b"1", is_json=True,
        headers={},
    )  # fmt: skip
    claimed = ClaimedJob(receipt=f"r{number}", record=record, deliveries=1, deadline_ms=lease_ms)
    return WorkerJob(claimed)


def claimed_jobs(*jobs):
    claimed = ClaimedJobs()
    claimed.add(jobs, now=0.0)
    return claimed


def test_jobs_come_in_the_order_in_which_they_were_claimed():
    first, second = job(1), job(2)
    found = claimed_jobs(first, second)
    assert [found.next(), found.next(), found.next()] == [first, second, None]


def test_leases_of_jobs_that_wait_are_made_longer_too():
    found = claimed_jobs(job(1), job(2))
    found.next()
    assert found.due(4.0) == []
    assert found.due(5.0) == ["r1", "r2"]


def test_a_job_that_its_worker_settled_is_not_made_longer():
    first = job(1)
    found = claimed_jobs(first, job(2))
    found.next()
    first.is_settled = True
    assert found.due(5.0) == ["r2"]


def test_a_job_whose_lease_ended_while_it_waited_is_not_handed_out():
    first, second = job(1), job(2)
    found = claimed_jobs(first, second)
    found.mark_lost(["r1"])
    assert found.next() is second
    assert first.is_lost


def test_what_is_left_is_given_back_save_what_is_settled_or_lost():
    jobs = [job(n) for n in range(4)]
    found = claimed_jobs(*jobs)
    found.next()
    jobs[0].is_settled = True
    found.mark_lost(["r2"])
    assert found.take_unsettled() == ([], [jobs[1], jobs[3]])
    assert len(found.leases) == 0
    assert found.take_unsettled() == ([], [])


def test_the_job_that_was_begun_is_told_from_those_that_were_not():
    jobs = [job(n) for n in range(3)]
    found = claimed_jobs(*jobs)
    found.next()
    assert found.take_unsettled() == ([jobs[0]], jobs[1:])
