"""kcat, as Debian ships it with librdkafka 2.0, produces, consumes and queries."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from .conftest import TIMEOUT_S


@pytest.fixture
def kcat(bootstrap):
    """Run kcat: `kcat("-L")` returns its output."""

    assert shutil.which("kcat"), "run `make clients`"

    def run(*arguments, sent=None):
        # Later settings win; a setting that this kcat does not know is an error.
        command = ["kcat", "-b", bootstrap, *arguments]
        done = subprocess.run(
            command, input=sent, capture_output=True, text=True, timeout=2 * TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def consumed(kcat, topic, *arguments):
    """Return all records of the topic in kcat's JSON."""
    lines = kcat("-C", "-t", topic, "-e", "-q", "-J", *arguments).splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_are_read_as_they_were_written(kcat, new_topic, codec):
    topic = new_topic()
    sent = [f"line {number} " * 20 for number in range(100)]
    kcat("-P", "-t", topic, "-z", codec, sent="\n".join(sent))
    found = consumed(kcat, topic)
    assert [message["payload"] for message in found] == sent
    assert [message["offset"] for message in found] == list(range(100))


def test_keys_and_headers_are_kept(kcat, new_topic):
    topic = new_topic()
    kcat("-P", "-t", topic, "-K:", "-H", "a=1", "-H", "a=2", "-H", "none", sent="key:value\n")
    (message,) = consumed(kcat, topic)
    assert (message["key"], message["payload"]) == ("key", "value")
    assert message["headers"] == ["a", "1", "a", "2", "none", None]


def test_a_topic_is_listed_with_its_partitions(kcat, bootstrap, new_topic):
    topic = new_topic(3)
    listing = json.loads(kcat("-L", "-J", "-t", topic))
    (broker,) = listing["brokers"]
    assert broker["name"] == bootstrap
    (found,) = listing["topics"]
    assert found["topic"] == topic
    assert [partition["partition"] for partition in found["partitions"]] == [0, 1, 2]
    assert {partition["leader"] for partition in found["partitions"]} == {broker["id"]}


def test_offsets_are_found_by_time(kcat, new_topic):
    topic = new_topic()
    kcat("-P", "-t", topic, sent="one\ntwo\n")
    first, second = consumed(kcat, topic)
    for time_ms, offset in (
        (-2, 0),
        (-1, 2),
        (first["ts"], 0),
        (second["ts"] + 1, -1),
    ):
        answer = kcat("-Q", "-t", f"{topic}:0:{time_ms}")
        assert f"{topic} [0] offset {offset}" in answer


def test_a_consumer_begins_where_it_is_told(kcat, new_topic):
    topic = new_topic()
    kcat("-P", "-t", topic, sent="\n".join("0123456789"))
    assert kcat("-C", "-t", topic, "-e", "-q", "-o", "7").split() == ["7", "8", "9"]
    assert kcat("-C", "-t", topic, "-e", "-q", "-o", "-2").split() == ["8", "9"]
    assert kcat("-C", "-t", topic, "-q", "-o", "beginning", "-c", "2").split() == ["0", "1"]


def test_a_group_goes_on_where_it_was(kcat, new_topic, name):
    topic = new_topic()
    settings = ("-X", "auto.offset.reset=earliest", "-q", "-e")
    kcat("-P", "-t", topic, sent="\n".join("012"))
    assert kcat("-G", name, *settings, topic).split() == ["0", "1", "2"]
    kcat("-P", "-t", topic, sent="\n".join("34"))
    assert kcat("-G", name, *settings, topic).split() == ["3", "4"]


def test_an_idempotent_and_a_transactional_producer_are_served(kcat, new_topic, name):
    topic = new_topic()
    kcat("-P", "-t", topic, "-X", "enable.idempotence=true", sent="idempotent\n")
    kcat("-P", "-t", topic, "-X", f"transactional.id={name}", sent="one\ntwo\n")
    found = [message["payload"] for message in consumed(kcat, topic)]
    assert found == ["idempotent", "one", "two"]
