"""A node that runs its maintenance when it reads a line from standard input.

    python node.py DATA BYTES_PER_SECOND

It answers with `cleaned` once that is done. 0 bytes per second is without limit.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from millstream.config.schema import Endpoint, NodeConfig, StoreConfig
from millstream.node import Node

LOOPBACK = Endpoint("127.0.0.1", 0)


async def main(data: str, bytes_per_second: int) -> None:
    """Serve until standard input ends."""
    store = StoreConfig(upkeep_interval_ms=0, cleaning_bytes_per_second_max=bytes_per_second)
    loop = asyncio.get_running_loop()
    async with Node(NodeConfig(data=data, kafka=LOOPBACK, http=LOOPBACK, store=store)) as server:
        print(f"kafka 127.0.0.1:{server.kafka.port}", flush=True)
        while await loop.run_in_executor(None, sys.stdin.readline):
            await server.broker.store.maintenance.run_once()
            print("cleaned", flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
