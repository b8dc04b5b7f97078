"""The Kafka door: bytes, requests, durability and latency, beside the least they could cost."""

from __future__ import annotations

from subjects.kafka.consume import CONSUME, LONE
from subjects.kafka.produce import DURABLE, PRODUCE_1_MB, PRODUCE_16_KB, REQUESTS

EXPERIMENTS = (PRODUCE_1_MB, PRODUCE_16_KB, REQUESTS, DURABLE, CONSUME, LONE)
