"""`millstream queue work`: one command per job, and the outcome of the job."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream
from millstream.clients.http.sync.queue import ClientQueue
from millstream.testing.broker import RunningBroker
from tests.cli.commands import is_one_line, run, started
from tests.cli.nodes import PATIENCE, wait_until


@pytest.fixture
def queue(node: RunningBroker) -> Iterator[ClientQueue]:
    with millstream.Client(node.url) as client:
        yield client.create_queue("mail", deliveries_max=3)


def python(tmp_path: Path, code: str) -> list[str]:
    """Return a command that runs Python code with `out`, a file to write to."""
    script = tmp_path / "command.py"
    script.write_text(f"import os, sys\nout = open({str(tmp_path / 'out')!r}, 'ab')\n{code}\n")
    return [sys.executable, str(script)]


def work(node: RunningBroker, *words: object) -> tuple[int, str]:
    result = run("queue", "work", "mail", *words, server=node.url)
    return result.exit_code, result.stderr


def test_a_command_gets_each_job_and_what_it_ends_well_is_done(
    node: RunningBroker, queue: ClientQueue, tmp_path: Path
) -> None:
    for number in range(3):
        queue.put(b"value %d\xff\n" % number, key=f"k{number}")
    code = (
        "out.write(sys.stdin.buffer.read())\n"
        "names = ('JOB_KEY', 'JOB_PARTITION', 'JOB_OFFSET', 'JOB_DELIVERIES')\n"
        "out.write(' '.join(os.environ[name] for name in names).encode() + b'\\n')\n"
    )
    status, said = work(node, "--until-empty", "--", *python(tmp_path, code), "--option")
    assert (status, said) == (0, "3 jobs done, 0 returned to the queue\n")
    assert (tmp_path / "out").read_bytes() == b"".join(
        b"value %d\xff\nk%d 0 %d 1\n" % (number, number, number) for number in range(3)
    )
    assert queue.counts().acked == 3


def test_a_job_whose_command_fails_is_given_back_until_it_is_dead(
    node: RunningBroker, queue: ClientQueue, tmp_path: Path
) -> None:
    queue.put("good")
    queue.put("bad")
    code = "sys.exit(7 if 'bad' in sys.stdin.read() else 0)"
    status, said = work(node, "--until-empty", "--", *python(tmp_path, code))
    assert status == 1
    assert said.splitlines() == [
        *(
            f"job 0:1: exit status 7, returned to the queue (delivery {number})"
            for number in (1, 2, 3)
        ),
        "1 jobs done, 3 returned to the queue",
    ]
    wait_until(lambda: queue.counts().dead == 1)
    assert queue.counts().acked == 1


def test_a_failed_job_waits_where_that_is_wanted(
    node: RunningBroker, queue: ClientQueue, tmp_path: Path
) -> None:
    queue.put("bad")
    words = ("--until-empty", "--retry-ms", "1h", "--", *python(tmp_path, "os.abort()"))
    status, said = work(node, *words)
    assert status == 1
    assert said.startswith("job 0:0: ended by signal 6, returned to the queue (delivery 1)\n")
    assert queue.counts().delayed == 1


def test_a_command_that_reads_nothing_is_as_good_as_any(
    node: RunningBroker, queue: ClientQueue, tmp_path: Path
) -> None:
    queue.put(b"x" * 500_000)
    assert work(node, "--until-empty", "--", *python(tmp_path, "pass"))[0] == 0
    assert queue.counts().acked == 1


def test_it_ends_after_as_many_as_were_wanted(
    node: RunningBroker, queue: ClientQueue, tmp_path: Path
) -> None:
    for number in range(3):
        queue.put(number)
    assert work(node, "--limit", 2, "--", *python(tmp_path, "pass"))[0] == 0
    counts = queue.counts()
    assert (counts.acked, counts.ready, counts.leased) == (2, 1, 0)


def test_a_command_that_is_not_there_takes_no_job(node: RunningBroker, queue: ClientQueue) -> None:
    queue.put("job")
    status, said = work(node, "--", "no-such-command\x1b")
    assert status == 2
    assert "no-such-command" in said
    assert "\x1b" not in said
    assert queue.counts().delivered == 0


def test_sigterm_ends_it_after_the_job_that_is_worked_on(
    node: RunningBroker, queue: ClientQueue, tmp_path: Path
) -> None:
    queue.put("first")
    queue.put("second")
    code = "out.write(b'begun'); out.flush(); os.read(os.open(sys.argv[1], os.O_RDONLY), 1)"
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    words = ("queue", "work", "mail", "--server", node.url, "--", *python(tmp_path, code), gate)
    with started(*words) as process:
        wait_until(lambda: (tmp_path / "out").exists() and (tmp_path / "out").read_bytes())
        process.send_signal(signal.SIGTERM)
        gate.write_bytes(b"go")
        errors = process.communicate(timeout=PATIENCE)[1]
    assert (process.returncode, errors) == (0, b"1 jobs done, 0 returned to the queue\n")
    counts = queue.counts()
    assert (counts.acked, counts.ready, counts.leased) == (1, 1, 0)


def test_ctrl_c_ends_it_and_its_command_and_gives_the_job_back(
    node: RunningBroker, queue: ClientQueue, tmp_path: Path
) -> None:
    queue.put("job")
    code = "out.write(b'%d' % os.getpid()); out.flush(); import signal; signal.pause()"
    words = ("queue", "work", "mail", "--server", node.url, "--", *python(tmp_path, code))
    with started(*words) as process:
        wait_until(lambda: (tmp_path / "out").exists() and (tmp_path / "out").read_bytes())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert not Path("/proc", (tmp_path / "out").read_text()).exists()
    assert queue.counts().ready == 1


def test_a_lease_outlives_a_command_that_takes_longer(
    node: RunningBroker, queue: ClientQueue, tmp_path: Path
) -> None:
    queue.put("job")
    code = "out.write(b'begun'); out.flush(); os.read(os.open(sys.argv[1], os.O_RDONLY), 1)"
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    words = ("queue", "work", "mail", "--server", node.url, "--lease-ms", "2s", "--until-empty",
             "--", *python(tmp_path, code), gate)  # fmt: skip
    with started(*words) as process:
        wait_until(lambda: (tmp_path / "out").exists() and (tmp_path / "out").read_bytes())
        # Another client waits for the job for longer than the lease.
        assert queue.claim(1, wait_ms=4_000) == []
        gate.write_bytes(b"go")
        assert process.wait(PATIENCE) == 0
    counts = queue.counts()
    assert (counts.acked, counts.delivered) == (1, 1)


def test_without_a_command_it_is_wrong_usage(node: RunningBroker, queue: ClientQueue) -> None:
    assert work(node)[0] == 2


def test_a_node_that_is_not_there_is_told_in_one_line() -> None:
    result = run("queue", "work", "mail", "--", "true", server="http://127.0.0.1:1")
    assert result.exit_code == 1
    assert is_one_line(result.stderr)
