"""`millstream queue`: create, set, fill, browse and delete queues."""

from __future__ import annotations

import pytest

import millstream
from millstream.testing.broker import RunningBroker
from tests.cli.commands import is_one_line, run, told, type_in


def test_a_queue_is_made_set_and_shown(node: RunningBroker) -> None:
    made = run("queue", "create", "mail", "--lease-ms", "1min", server=node.url)
    assert made.stdout == "created mail: lease 60000 ms, 5 deliveries, then to mail-dead\n"
    again = run("queue", "create", "mail", server=node.url)
    assert again.exit_code == 1
    assert is_one_line(again.stderr)
    kept = told("queue", "create", "mail", "--lease-ms", "5s", "--if-absent", server=node.url)
    assert (kept["created"], kept["lease_ms"]) == (False, 60_000)
    words = ("--deliveries-max", 2, "--dead-letter", "lost", "--claim-window-ms", 5)
    changed = run("queue", "set", "mail", *words, server=node.url)
    assert changed.stdout == (
        "mail: lease 60000 ms, 2 deliveries, then to lost, claim window 5 ms\n"
    )
    settings, head, counts = run("queue", "describe", "mail", server=node.url).stdout.splitlines()
    assert settings == changed.stdout.strip()
    assert head.split()[:3] == ["ENQUEUED", "READY", "LEASED"]
    assert counts.split() == ["0"] * 9


def test_what_a_queue_cannot_be_is_said_in_one_line(node: RunningBroker) -> None:
    result = run("queue", "create", "mail", "--lease-ms", 1, server=node.url)
    assert result.exit_code == 1
    assert is_one_line(result.stderr)
    assert "lease_ms" in result.stderr
    assert run("queue", "set", "mail", server=node.url).exit_code == 2


def test_queues_are_listed_with_their_jobs(node: RunningBroker) -> None:
    empty = run("queue", "list", server=node.url)
    assert (empty.exit_code, empty.stdout) == (0, "")
    with millstream.Client(node.url) as client:
        queue = client.create_queue("mail")
        for number in range(4):
            queue.put(number)
        one, two = queue.claim(2)
        one.ack()
        two.nack(delay_ms=60_000)
        queue.claim(1)
    assert run("queue", "list", server=node.url).stdout.splitlines()[1].split() == [
        "mail", "1", "1", "1", "1", "0"
    ]  # fmt: skip
    (found,) = told("queue", "list", server=node.url)["queues"]
    assert (found["ready"], found["leased"], found["acked"]) == (1, 1, 1)


def test_jobs_are_put_in_as_records_are_appended(node: RunningBroker) -> None:
    run("queue", "create", "mail", server=node.url)
    answer = told("queue", "put", "mail", "--key", "k", server=node.url, input=b"a\nb\n")
    assert answer["records"] == 2
    with millstream.Client(node.url) as client:
        assert [(job.key, job.value) for job in client.queue("mail").claim(5)] == [
            ("k", b"a"), ("k", b"b")
        ]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ("put", "orders", "--value", "a"),
        ("describe", "orders"),
        ("delete", "orders", "--yes"),
        ("set", "orders", "--lease-ms", "1s"),
        ("jobs", "orders"),
        ("work", "orders", "--", "true"),
    ],
    ids=" ".join,
)
def test_a_topic_that_is_no_queue_is_told_from_one(
    node: RunningBroker, words: tuple[str, ...]
) -> None:
    run("topic", "create", "orders", server=node.url)
    run("queue", "create", "order", server=node.url)
    result = run("queue", *words, server=node.url)
    assert result.exit_code == 1, result.output
    assert is_one_line(result.stderr)
    assert result.stderr.endswith("Did you mean order?\n")
    assert told("topic", "describe", "orders", server=node.url)["count"] == 0


def test_jobs_are_looked_at_and_not_claimed(node: RunningBroker) -> None:
    with millstream.Client(node.url) as client:
        queue = client.create_queue("mail", lease_ms=60_000)
        queue.put({"to": "a"}, key="k\x1b")
        queue.put("x" * 100)
        queue.put(b"\xff")
        queue.claim(1, worker="w1\x1b")
    head, first, *rest = run("queue", "jobs", "mail", server=node.url).stdout.splitlines()
    assert head.split()[:3] == ["JOB", "STATE", "DELIVERIES"]
    assert first.split()[:3] == ["0:0", "leased", "1"]
    assert r"w1\x1b" in first
    assert r"k\x1b" in first
    assert first.rstrip().endswith('{"to": "a"}')
    assert [line.split()[:2] for line in rest] == [["0:1", "ready"], ["0:2", "ready"]]
    assert rest[0].rstrip().endswith("…")
    ready = told("queue", "jobs", "mail", "--state", "ready", server=node.url)["jobs"]
    assert [one["offset"] for one in ready] == [1, 2]
    some = run("queue", "jobs", "mail", "--limit", 1, server=node.url)
    assert len(some.stdout.splitlines()) == 2
    assert some.stderr == "Only the first 1 are shown.\n"
    none = run("queue", "jobs", "mail", "--state", "delayed", server=node.url)
    assert (none.exit_code, none.stdout) == (0, "")
    assert told("queue", "describe", "mail", server=node.url)["delivered"] == 1


@pytest.mark.parametrize(("typed", "status"), [("y", 0), ("n", 1)])
def test_a_queue_is_deleted_and_its_topic_stays(
    node: RunningBroker, typed: str, status: int
) -> None:
    with millstream.Client(node.url) as client:
        client.create_queue("mail").put(1)
    words = ("queue", "delete", "mail", "--server", node.url)
    returned, said = type_in(*words, typed=f"{typed}\n")
    assert returned == status
    assert "Delete the queue mail (1 unfinished jobs)? Its topic remains. [y/N]" in said
    assert len(told("queue", "list", server=node.url)["queues"]) == (1 if status else 0)
    assert told("topic", "describe", "mail", server=node.url)["count"] == 1


def bury(node: RunningBroker, count: int) -> None:
    """Create a queue with dead letters."""
    with millstream.Client(node.url) as client:
        queue = client.create_queue("mail", deliveries_max=1)
        for number in range(count):
            queue.put(number)
        queue.nack(queue.claim(count))
        while queue.counts().dead < count:
            pass


def test_dead_letters_are_moved_back(node: RunningBroker) -> None:
    bury(node, 3)
    some = told("queue", "redrive", "mail", "--limit", 1, server=node.url)
    assert some == {"moved": 1, "remaining": 2}
    rest = run("queue", "redrive", "mail", server=node.url)
    assert rest.stdout == "2 dead letters moved to mail, 0 remaining\n"
    none = run("queue", "redrive", "mail", server=node.url)
    assert (none.exit_code, none.stdout) == (0, "0 dead letters moved to mail, 0 remaining\n")
    with millstream.Client(node.url) as client:
        assert sorted(job.value for job in client.queue("mail").claim(10)) == [0, 1, 2]
    assert run("queue", "redrive", "nothing", server=node.url).exit_code == 1


def test_dead_letters_are_deleted_when_somebody_is_sure(node: RunningBroker) -> None:
    bury(node, 2)
    assert run("queue", "purge", "mail", server=node.url).exit_code == 2
    assert run("queue", "purge", "mail", "--yes", server=node.url).stdout == (
        "2 dead letters of mail deleted\n"
    )
    assert told("queue", "purge", "mail", "--yes", server=node.url)["purged"] == 0
