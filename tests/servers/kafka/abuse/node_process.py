"""A node in a process of its own, with limits that a test sets.

Run as `python -m tests.servers.kafka.abuse.node_process DATA SETTINGS`. SETTINGS is JSON:
`kafka_server` holds the fields of `KafkaConfig`, `descriptors_max` the limit of file descriptors.
"""

from __future__ import annotations

import json
import logging
import resource
import sys

from millstream.cli.serve import announce
from millstream.config.schema import Endpoint, KafkaConfig, NodeConfig
from millstream.node import run


def main(data: str, settings: str) -> int:
    asked = json.loads(settings)
    if descriptors_max := asked.get("descriptors_max"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_max, descriptors_max))
    logging.basicConfig(
        stream=sys.stderr, level="INFO", format="%(levelname)s %(name)s %(message)s"
    )
    any_port = Endpoint("127.0.0.1", 0)
    kafka_server = KafkaConfig(**asked.get("kafka_server", {}))
    config = NodeConfig(data=data, kafka=any_port, http=any_port, kafka_server=kafka_server)
    return run(config, announce)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
