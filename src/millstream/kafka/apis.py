"""Which handler serves which API: all of them, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from millstream.kafka.dispatch import Handler
from millstream.kafka.handlers import (
    acls,
    cluster,
    configs,
    consumer_groups,
    coordinator,
    epochs,
    fetch,
    groups,
    init_producer,
    list_offsets,
    metadata,
    offsets,
    produce,
    producers,
    quotas,
    records,
    sasl,
    topics,
    transactions,
    versions,
)

HANDLERS: Mapping[int, Handler] = MappingProxyType(
    {
        0: produce.produce,
        1: fetch.fetch,
        2: list_offsets.list_offsets,
        3: metadata.metadata,
        8: offsets.offset_commit,
        9: offsets.offset_fetch,
        10: coordinator.find_coordinator,
        11: groups.join_group,
        12: groups.heartbeat,
        13: groups.leave_group,
        14: groups.sync_group,
        15: groups.describe_groups,
        16: groups.list_groups,
        17: sasl.sasl_handshake,
        18: versions.api_versions,
        19: topics.create_topics,
        20: topics.delete_topics,
        21: records.delete_records,
        22: init_producer.init_producer_id,
        23: epochs.offset_for_leader_epoch,
        24: transactions.add_partitions_to_txn,
        25: transactions.add_offsets_to_txn,
        26: transactions.end_txn,
        28: transactions.txn_offset_commit,
        29: acls.describe_acls,
        30: acls.create_acls,
        31: acls.delete_acls,
        32: configs.describe_configs,
        33: configs.alter_configs,
        36: sasl.sasl_authenticate,
        37: topics.create_partitions,
        42: groups.delete_groups,
        43: topics.elect_leaders,
        44: configs.incremental_alter_configs,
        47: offsets.offset_delete,
        48: quotas.describe_client_quotas,
        49: quotas.alter_client_quotas,
        60: cluster.describe_cluster,
        61: producers.describe_producers,
        65: transactions.describe_transactions,
        66: transactions.list_transactions,
        68: consumer_groups.consumer_group_heartbeat,
        69: consumer_groups.consumer_group_describe,
    }
)
