"""Kafka's hash of a key, which decides its partition.

The hash is 32-bit murmur2 with Kafka's seed; its lower 31 bits modulo the number of partitions are
the partition, as in Kafka's Java clients. So records with the same key go to the same partition
regardless of which of these clients writes them. Clients based on librdkafka use another hash
unless they are configured to use `murmur2`.
"""

from __future__ import annotations

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_UINT32 = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return Kafka's hash of a key, as an unsigned 32-bit number."""
    hashed = _SEED ^ len(key)
    words_end = len(key) & ~3
    for start in range(0, words_end, 4):
        word = int.from_bytes(key[start : start + 4], "little") * _FACTOR & _UINT32
        word = (word ^ word >> 24) * _FACTOR & _UINT32
        hashed = hashed * _FACTOR & _UINT32 ^ word
    if words_end < len(key):
        hashed = (hashed ^ int.from_bytes(key[words_end:], "little")) * _FACTOR & _UINT32
    hashed = (hashed ^ hashed >> 13) * _FACTOR & _UINT32
    return hashed ^ hashed >> 15
