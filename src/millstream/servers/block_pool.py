"""Memory for arriving requests, shared by all connections and reused.

The kernel fills a block; the frames in it are passed on as views, and the records in them are
written to the disk from there, without a copy. A block is free again when no frame in it is used
any more. An idle connection has none.
"""

from __future__ import annotations

from collections.abc import Callable

BLOCK_SIZE = 256 * 1024
"""Largest size of one read. A larger one was not faster on loopback, and did not fit the
processor's cache.
"""

READ_SIZE_MIN = 64 * 1024
"""Smallest space that a read gets."""

BLOCK_SIZE_MIN = 512
"""Smallest block: a thousand connections that sent four bytes each must cost next to nothing."""

LARGE_SHARE = 0.75
"""The share of the memory that requests may use which do not fit into one read."""

READ_SHARE = 256
"""A read gets at most this fraction of the memory that is left: if all connections have to wait
with what they sent, none of them leaves nothing to the others.
"""

READ_SIZE_LEAST = 4 * 1024
"""What a read gets if next to nothing is left."""

KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Free memory that is kept for the next requests instead of being returned to the system."""


class ReceiveBlock:
    """A piece of memory with a count of its users. The caller of `take` is the first user."""

    __slots__ = ("_return_block", "size", "users", "view")

    def __init__(self, size: int, return_block: Callable[[ReceiveBlock], None]) -> None:
        self.size = size
        self.view = memoryview(bytearray(size))
        self.users = 0
        self._return_block = return_block

    def release(self) -> None:
        """Count one user less; with the last one, the block is free."""
        self.users -= 1
        if self.users == 0:
            self._return_block(self)


class BlockPool:
    """All blocks. Sizes are powers of two, so that a returned block fits the next request."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._free: dict[int, list[ReceiveBlock]] = {}
        self._kept_bytes = 0
        self._waiting: list[Callable[[], None]] = []
        self.used_bytes = 0
        """Bytes of all blocks in use."""
        self.reading = self.take(BLOCK_SIZE)
        """Block of the next read on any connection: one read ends before the next starts."""
        self.filled = 0
        """Bytes of it with frames that may still be in use."""

    def space(self) -> memoryview:
        """Return the memory for the next read into the shared block."""
        start = self.filled
        size = max((self._bytes_max - self.used_bytes) // READ_SHARE, READ_SIZE_LEAST)
        if size < BLOCK_SIZE - start:
            return self.reading.view[start : start + size]
        return self.reading.view[start:] if start else self.reading.view

    def has_capacity_for_read(self) -> bool:
        """Return whether a connection may read into the shared block."""
        return self.used_bytes <= self._bytes_max

    def has_capacity(self, size: int, *, held: int) -> bool:
        """Return whether a connection that holds `held` bytes may have `size` bytes instead.

        If no other connection holds memory, it may, whatever the size: otherwise a request larger
        than the limit could never arrive. A part of the memory is left to small requests, which
        need no memory of their own: clients that send large ones slowly do not delay them.
        """
        others = self.used_bytes - held
        return others <= BLOCK_SIZE or others + size <= self._bytes_max * LARGE_SHARE

    def take(self, size: int) -> ReceiveBlock:
        """Return a block of at least `size` bytes, whatever `has_capacity` says."""
        rounded = max(BLOCK_SIZE_MIN, 1 << (size - 1).bit_length())
        if free := self._free.get(rounded):
            block = free.pop()
            self._kept_bytes -= rounded
        else:
            block = ReceiveBlock(rounded, self._return_block)
        block.users = 1
        self.used_bytes += rounded
        return block

    def keep_read(self, count: int) -> None:
        """Keep the last `count` bytes that were read, because frames in them are in use.

        The next read goes behind them, into another block if that would leave it little space, and
        to the start again once the block has no other user.
        """
        self.filled += count
        if self.reading.users == 1:
            self.filled = 0
        elif BLOCK_SIZE - self.filled < READ_SIZE_MIN:
            self.reading.release()
            self.reading = self.take(BLOCK_SIZE)
            self.filled = 0

    def when_free(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when a block is returned."""
        self._waiting.append(callback)

    def _return_block(self, block: ReceiveBlock) -> None:
        self.used_bytes -= block.size
        if self._kept_bytes + block.size <= KEPT_BYTES_MAX:
            self._free.setdefault(block.size, []).append(block)
            self._kept_bytes += block.size
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()
