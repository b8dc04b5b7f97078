"""One broker for all tests of this folder, and names that no two tests share.

`MILLSTREAM_TEST_BOOTSTRAP=host:port` runs the same tests against another broker. That is how they
were made: each has to pass against Apache Kafka first, which shows that the test says what Kafka
does, and only then against ours. Kafka has to run with one replica of its internal topics and with
what `QUICK` says, under its own names: `group.initial.rebalance.delay.ms=0` and so on; and with
`log.retention.check.interval.ms=200` and `log.cleaner.backoff.ms=200`, so that old data goes soon.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.config.schema import BrokerConfig
from millstream.testing.broker import RunningBroker, running_broker

TIMEOUT_S = 30
QUICK = BrokerConfig(
    group_initial_rebalance_delay_ms=0,
    consumer_heartbeat_interval_ms=300,
    consumer_session_timeout_ms=6000,
)
"""Groups form at once, and a member that is gone is missed soon."""

_RUN = uuid.uuid4().hex[:8]
_numbers = itertools.count()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker | None]:
    """Our broker, or None if the tests run against another one."""
    if "MILLSTREAM_TEST_BOOTSTRAP" in os.environ:
        yield None
        return
    with running_broker(tmp_path_factory.mktemp("broker"), broker=QUICK) as broker:
        yield broker


@pytest.fixture(scope="session")
def bootstrap(node: RunningBroker | None) -> str:
    """Address for clients: "host:port"."""
    return os.environ["MILLSTREAM_TEST_BOOTSTRAP"] if node is None else node.bootstrap


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A unique name for topics, groups and transactional ids of the test."""
    return f"{request.node.originalname[5:60]}-{_RUN}-{next(_numbers)}"


@pytest.fixture
def new_topic(admin: AdminClient, name: str) -> Iterator[Callable[..., str]]:
    """Creates topics: `new_topic(partitions=1, configs={})` returns the name."""
    made: list[str] = []

    def create(partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        topic = f"{name}-t{len(made)}"
        new = NewTopic(topic, partitions, 1, config=configs or {})
        admin.create_topics([new])[topic].result(TIMEOUT_S)
        made.append(topic)
        # Kafka answers when its controller knows the topic; its broker learns of it a moment later.
        while topic not in admin.list_topics(timeout=TIMEOUT_S).topics:
            pass
        return topic

    yield create
    if made:
        # Not waited for: what is deleted here concerns no other test.
        admin.delete_topics(made)
