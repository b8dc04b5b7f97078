"""A Quix Streams application that counts words exactly once; runs until it is killed.

Run as `python -m tests.compat.quixstreams_app BOOTSTRAP SOURCE TARGET GROUP STATE_DIRECTORY`.
"""

from __future__ import annotations

import sys
from typing import Any

from quixstreams import Application, State


def counted(value: str, state: State) -> dict[str, Any]:
    count: int = state.get("count", 0) + 1
    state.set("count", count)
    return {"word": value, "count": count}


def main(bootstrap: str, source: str, target: str, group: str, state_directory: str) -> None:
    app = Application(
        bootstrap,
        consumer_group=group,
        state_dir=state_directory,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_every=7,
        commit_interval=0.2,
        consumer_poll_timeout=0.1,
        loglevel="WARNING",
        consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 200},
        # A transaction left open by a kill has to time out: the next start has another id.
        producer_extra_config={"transaction.timeout.ms": 3000},
    )
    words = app.topic(source, key_deserializer="str", value_deserializer="str")
    counts = app.topic(target, key_serializer="str", value_serializer="json")
    frame = app.dataframe(words)
    frame = frame.apply(counted, stateful=True)
    frame.to_topic(counts)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
