"""Queues and workers of both clients, against a real node."""

from __future__ import annotations

import logging
import threading

import pytest

from millstream.errors import StaleReceipt, UnknownQueue

from .scripted import ScriptedNode, answer, refusal

PATIENCE_S = 30


@pytest.fixture
def queue(client, name):
    return client.create_queue(name, lease_ms=30_000)


def counts(queue):
    found = queue.counts()
    return found.ready + found.delayed, found.leased, found.acked


def test_a_queue_is_made_and_told_of(client, name):
    client.create_queue(name, lease_ms=1_000, deliveries_max=3)
    client.create_queue(name, deliveries_max=4)
    state = client.queue(name).counts()
    assert (state.lease_ms, state.deliveries_max) == (1_000, 4)
    assert name in [one.name for one in client.queues()]
    client.queue(name).delete()
    with pytest.raises(UnknownQueue):
        client.queue(name).counts()


def test_a_job_is_claimed_with_what_went_with_it_and_acked(queue):
    queue.put({"to": "a"}, key="k", headers={"h": "v"})
    [job] = queue.claim(10)
    assert (job.value, job.key, job.headers, job.deliveries) == ({"to": "a"}, "k", {"h": "v"}, 1)
    assert counts(queue) == (0, 1, 0)
    job.ack()
    job.ack()
    assert job.is_settled
    assert counts(queue) == (0, 0, 1)


def test_a_job_that_is_given_back_comes_again(queue):
    queue.put(1)
    [job] = queue.claim()
    job.nack()
    [again] = queue.claim(wait_ms=5_000)
    assert (again.value, again.deliveries) == (1, 2)
    with pytest.raises(StaleReceipt) as caught:
        job.ack()
    assert caught.value.receipts == (job.receipt,)
    again.nack(delay_ms=60_000)
    assert queue.claim() == []
    assert queue.counts().delayed == 1


def test_a_job_that_is_released_was_not_delivered(queue):
    queue.put(1)
    [job] = queue.claim()
    job.release()
    assert job.is_settled
    [again] = queue.claim(wait_ms=5_000)
    assert (again.value, again.deliveries) == (1, 1)
    with pytest.raises(StaleReceipt):
        job.ack()
    queue.release([again])
    queue.release([])
    assert counts(queue) == (1, 0, 0)


def test_many_jobs_are_settled_in_one_go(queue):
    for n in range(5):
        queue.put(n)
    jobs = queue.claim(5)
    queue.extend(jobs, lease_ms=60_000)
    queue.ack(jobs[:3])
    queue.nack(jobs[3:])
    assert counts(queue) == (2, 0, 3)
    queue.ack([])


def test_a_worker_acks_each_job_when_it_asks_for_the_next(queue):
    for n in range(5):
        queue.put(n)
    seen = []
    with queue.work(ahead=2, stops_when_empty=True) as jobs:
        for job in jobs:
            assert queue.counts().acked == len(seen)
            seen.append(job.value)
    assert seen == list(range(5))
    assert counts(queue) == (0, 0, 5)


class Trouble(Exception):
    pass


def test_a_job_whose_work_failed_is_given_back_with_those_claimed_ahead(queue):
    for n in range(5):
        queue.put(n)

    def fail_at(value):
        with queue.work(ahead=3) as jobs:
            for job in jobs:
                if job.value == value:
                    raise Trouble

    with pytest.raises(Trouble):
        fail_at(1)
    assert counts(queue) == (4, 0, 1)


def test_a_poison_job_and_many_restarts_bury_only_the_poison_job(client, name):
    queue = client.create_queue(name, deliveries_max=5)
    for n in range(10):
        queue.put(n)

    def work_once():
        with queue.work(ahead=10) as jobs:
            for job in jobs:
                if job.value == 0:
                    raise Trouble

    for _ in range(5):
        with pytest.raises(Trouble):
            work_once()
    left = queue.claim(10)
    assert sorted(job.value for job in left) == list(range(1, 10)), "they were never tried"
    assert {job.deliveries for job in left} == {1}
    queue.ack(left)
    [letter] = client.create_queue(f"{name}-dead").claim(10, wait_ms=20_000)
    assert letter.value == 0


def test_workers_that_stop_again_and_again_bury_nothing(client, name):
    queue = client.create_queue(name, deliveries_max=1)
    for n in range(10):
        queue.put(n)
    for done in range(5):
        with queue.work(ahead=10) as jobs:
            for _ in jobs:
                jobs.stop()
        assert counts(queue) == (9 - done, 0, done + 1)
    assert queue.counts().dead == 0


def test_workers_share_slow_jobs_evenly_by_default(connect, broker, client, queue):
    """Five workers each begin a job before any of them ends one, twice."""
    for n in range(10):
        queue.put(n)
    together = threading.Barrier(5)
    done = []

    def run():
        worker = connect(broker.url).queue(queue.name)
        seen = []
        with worker.work(wait_ms=20_000) as jobs:
            for job in jobs:
                together.wait(PATIENCE_S)
                seen.append(job.value)
                if len(seen) == 2:
                    jobs.stop()
        done.append(seen)

    workers = [threading.Thread(target=run) for _ in range(5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(2 * PATIENCE_S)
    assert sorted(value for seen in done for value in seen) == list(range(10))
    assert [len(seen) for seen in done] == [2] * 5
    assert counts(queue) == (0, 0, 10)


def test_who_leaves_the_loop_gives_the_job_back_unless_it_was_acked(queue):
    for n in range(4):
        queue.put(n)
    with queue.work(ahead=1) as jobs:
        for _ in jobs:
            break
    assert counts(queue) == (4, 0, 0)
    with queue.work(ahead=1) as jobs:
        for job in jobs:
            job.ack()
            break
    assert counts(queue) == (3, 0, 1)


def test_a_loop_that_is_left_without_a_word_gives_the_job_back_too(queue):
    for n in range(2):
        queue.put(n)
    for _ in queue.work(ahead=2):
        break
    found = [job.value for _ in range(2) for job in queue.claim(wait_ms=20_000)]
    assert sorted(found) == [0, 1]


def test_a_worker_goes_on_behind_a_failure_that_it_deals_with(queue):
    for n in range(3):
        queue.put(n)
    with queue.work(stops_when_empty=True) as jobs:
        for job in jobs:
            if job.value == 1 and job.deliveries == 1:
                job.nack()
    assert counts(queue) == (0, 0, 3)
    assert queue.counts().delivered == 4


def test_a_worker_waits_for_jobs_and_can_be_stopped(queue):
    seen = []
    work = queue.work(wait_ms=20)

    def run():
        with work as jobs:
            for job in jobs:
                seen.append(job.value)
                if job.value == "last":
                    jobs.stop()

    worker = threading.Thread(target=run)
    worker.start()
    for value in ("first", "last"):
        queue.put(value)
    worker.join(PATIENCE_S)
    assert not worker.is_alive()
    assert seen == ["first", "last"]
    assert counts(queue) == (0, 0, 2)


def test_leases_are_made_longer_while_a_job_takes_its_time(client, queue):
    """Waits in real time for two leases, long enough for a busy machine to extend them."""
    for n in range(3):
        queue.put(n)
    other = client.queue(queue.name)
    with queue.work(ahead=3, lease_ms=1_500, stops_when_empty=True) as jobs:
        for job in jobs:
            if job.value == 0:
                assert other.claim(10, wait_ms=3_200) == [], "nobody else gets any of them"
    assert counts(queue) == (0, 0, 3)
    assert queue.counts().delivered == 3


def test_a_job_whose_lease_was_lost_is_told_and_the_worker_goes_on(queue, caplog):
    for n in range(2):
        queue.put(n)
    with caplog.at_level(logging.WARNING), queue.work(ahead=1, stops_when_empty=True) as jobs:
        for job in jobs:
            if job.deliveries == 1 and job.value == 0:
                # As after an expired lease: the receipt is no longer the newest.
                queue.nack([job])
                [stolen] = queue.claim()
                assert stolen.value == 0
                job.is_settled = False
                (getattr(job, "_thing", job)).is_settled = False
                queue.nack([stolen], delay_ms=0)
    assert "was completed after its lease expired" in caplog.text
    assert counts(queue) == (0, 0, 2)


def test_a_worker_outlives_claims_that_are_cut(connect, proxy, client, queue):
    for n in range(6):
        queue.put(n)
    through = connect(f"http://{proxy.bootstrap}", pause=lambda _: None)
    seen = []
    with through.queue(queue.name).work(ahead=1, lease_ms=200, wait_ms=100) as jobs:
        for job in jobs:
            seen.append(job.value)
            if job.value in {1, 3}:
                proxy.cut_all()
            if len(seen) == 6:
                jobs.stop()
    assert sorted(seen) == list(range(6))
    assert counts(queue) == (0, 0, 6)


def test_a_worker_pauses_longer_and_longer_between_claims_that_fail_and_warns_once(connect, caplog):
    unknown = refusal(504, "outcome_unknown")
    empty = answer(200, {"jobs": [], "cost": {}})
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 7:
            getattr(jobs, "_thing", jobs).stop()  # From within the loop of an `AsyncClient`.

    config = {"pause_s_min": 1.0, "pause_s_max": 4.0}
    with (
        caplog.at_level(logging.INFO),
        ScriptedNode(*[unknown] * 4, empty, unknown) as node,
        connect(node.url, pause=pause, jitter=lambda: 0.0, config=config).queue("q").work() as jobs,
    ):
        assert list(jobs) == []
        assert len(node.seen) == 8
    assert pauses == [0.5, 1.0, 2.0, 2.0, 0.5, 1.0, 2.0], "an outage begins with a short one"
    told = [record.getMessage() for record in caplog.records if "from queue q" in record.message]
    assert [text.split(":")[0] for text in told] == [
        "claim from queue q failed",
        "claims from queue q succeed again after 4 that failed",
        "claim from queue q failed",
    ]


def test_a_claim_of_unknown_outcome_is_not_taken_for_an_empty_queue(connect):
    """A node of a cluster answers so if the coordinator of the queue failed with the claim."""
    with ScriptedNode(
        refusal(504, "outcome_unknown"),
        refusal(504, "outcome_unknown"),
        answer(200, {"jobs": [], "cost": {}}),
    ) as node:
        with connect(node.url).queue("q").work(stops_when_empty=True) as jobs:
            assert list(jobs) == []
        assert len(node.seen) == 3
