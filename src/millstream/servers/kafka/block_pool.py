"""Memory that requests arrive in, shared by all connections and used again and again.

A block is filled by the kernel; the frames in it are handed out as views, and the records in them
are written to the disk from there, without a copy. A block goes back when no frame in it is used
any more. An idle connection has none.
"""

from __future__ import annotations

from collections.abc import Callable

BLOCK_SIZE = 256 * 1024
"""What one read may bring. Larger gave no more on loopback, and left the processor's cache."""

READ_SIZE_MIN = 64 * 1024
"""A read gets at least so much room."""

BLOCK_SIZE_MIN = 512
"""The smallest: a thousand connections that sent four bytes each must cost next to nothing."""

KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Free memory that is kept for the next requests instead of given back to the system."""


class ReceiveBlock:
    """A piece of memory and how many use it. Whoever takes it is its first user."""

    __slots__ = ("_give_back", "size", "users", "view")

    def __init__(self, size: int, give_back: Callable[[ReceiveBlock], None]) -> None:
        self.size = size
        self.view = memoryview(bytearray(size))
        self.users = 0
        self._give_back = give_back

    def release(self) -> None:
        """Count one user less; with the last, the block is free."""
        self.users -= 1
        if self.users == 0:
            self._give_back(self)


class BlockPool:
    """All blocks. Sizes are powers of two, so that a block that comes back fits the next need."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._free: dict[int, list[ReceiveBlock]] = {}
        self._kept_bytes = 0
        self._waiting: list[Callable[[], None]] = []
        self.used_bytes = 0
        """Bytes of all blocks that someone uses."""
        self.reading = self.take(BLOCK_SIZE)
        """Where the next read goes, whatever its connection: a read is over before the next."""
        self.filled = 0
        """How much of it holds frames that may still be in use."""

    def has_room(self, size: int, *, held: int) -> bool:
        """Whether someone who holds `held` bytes may have `size` instead.

        Who is alone may, whatever the size: else a request larger than the limit never arrived.
        """
        others = self.used_bytes - held
        return others <= BLOCK_SIZE or others + size <= self._bytes_max

    def take(self, size: int) -> ReceiveBlock:
        """Return a block of at least `size` bytes. Ask `has_room` first where that may wait."""
        rounded = max(BLOCK_SIZE_MIN, 1 << (size - 1).bit_length())
        if free := self._free.get(rounded):
            block = free.pop()
            self._kept_bytes -= rounded
        else:
            block = ReceiveBlock(rounded, self._give_back)
        block.users = 1
        self.used_bytes += rounded
        return block

    def keep_read(self, count: int) -> None:
        """Leave the `count` bytes alone that were read last, because frames in them are in use.

        The next read goes behind them; into another block where that would leave it little room;
        and to the start again once nobody uses the block.
        """
        self.filled += count
        if self.reading.users == 1:
            self.filled = 0
        elif BLOCK_SIZE - self.filled < READ_SIZE_MIN:
            self.reading.release()
            self.reading = self.take(BLOCK_SIZE)
            self.filled = 0

    def when_free(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when a block was given back."""
        self._waiting.append(callback)

    def _give_back(self, block: ReceiveBlock) -> None:
        self.used_bytes -= block.size
        if self._kept_bytes + block.size <= KEPT_BYTES_MAX:
            self._free.setdefault(block.size, []).append(block)
            self._kept_bytes += block.size
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()
