"""Process that changes metadata forever, and prints each revision once it is acknowledged.

python -m tests.metadata.writer_process PATH
"""

from __future__ import annotations

import asyncio
import sys

from millstream.metadata.sqlite import SqliteMetadata


async def main() -> None:
    async with SqliteMetadata(sys.argv[1]) as metadata:
        number = 0
        while True:
            number += 1
            revision = await metadata.transact(
                puts={f"k{number % 50}": b"%d" % number}, deletes=[f"k{(number + 7) % 50}"]
            )
            print(revision, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
