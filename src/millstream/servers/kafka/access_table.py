"""Which rights each Kafka API needs: one row per key. The rows are Kafka's, unless they say so.

Handlers ask the gate for the resources of a request by these rows and never name an operation
themselves, so what is in the table is what is checked. A request can name several resources; each
is checked on its own, and its error is the answer for that resource.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from millstream.broker.access.resources import Operation
from millstream.servers.api_needs import OPEN, ApiNeeds

_R, _W, _C, _D = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
_ALTER, _DESCRIBE = Operation.ALTER, Operation.DESCRIBE
_SEE_CONFIGS, _SET_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS


NEEDS: Mapping[int, ApiNeeds] = MappingProxyType(
    {
        0: ApiNeeds(topic=_W, transactional_id=_W),  # Produce.
        1: ApiNeeds(topic=_R),  # Fetch.
        2: ApiNeeds(topic=_DESCRIBE),  # ListOffsets.
        # Metadata. A topic that it creates needs the right to create it, or any topic.
        3: ApiNeeds(topic=_DESCRIBE, is_filtered=True),
        8: ApiNeeds(topic=_R, group=_R),  # OffsetCommit.
        9: ApiNeeds(topic=_DESCRIBE, group=_DESCRIBE, is_filtered=True),  # OffsetFetch.
        10: ApiNeeds(group=_DESCRIBE, transactional_id=_DESCRIBE),  # FindCoordinator.
        11: ApiNeeds(group=_R),  # JoinGroup.
        12: ApiNeeds(group=_R),  # Heartbeat.
        13: ApiNeeds(group=_R),  # LeaveGroup.
        14: ApiNeeds(group=_R),  # SyncGroup.
        15: ApiNeeds(group=_DESCRIBE),  # DescribeGroups.
        # ListGroups: all with the right to describe the cluster.
        16: ApiNeeds(group=_DESCRIBE, cluster=_DESCRIBE, is_filtered=True, is_cluster_enough=True),
        17: OPEN,  # SaslHandshake.
        18: OPEN,  # ApiVersions.
        19: ApiNeeds(topic=_C, cluster=_C, is_cluster_enough=True),  # CreateTopics.
        20: ApiNeeds(topic=_D),  # DeleteTopics.
        21: ApiNeeds(topic=_D),  # DeleteRecords.
        # InitProducerId: without a transactional id, to write to the cluster or to some topic.
        22: ApiNeeds(
            topic=_W,
            transactional_id=_W,
            cluster=Operation.IDEMPOTENT_WRITE,
            is_cluster_enough=True,
        ),
        23: ApiNeeds(topic=_DESCRIBE),  # OffsetForLeaderEpoch.
        # AddPartitionsToTxn. Versions that nodes send need the right of nodes in Kafka; here they
        # need the same as others, for each transaction.
        24: ApiNeeds(topic=_W, transactional_id=_W),
        25: ApiNeeds(group=_R, transactional_id=_W),  # AddOffsetsToTxn.
        26: ApiNeeds(transactional_id=_W),  # EndTxn.
        28: ApiNeeds(topic=_R, group=_R, transactional_id=_W),  # TxnOffsetCommit.
        29: ApiNeeds(cluster=_DESCRIBE),  # DescribeAcls.
        30: ApiNeeds(cluster=_ALTER),  # CreateAcls.
        31: ApiNeeds(cluster=_ALTER),  # DeleteAcls.
        # DescribeConfigs: nodes belong to the cluster.
        32: ApiNeeds(topic=_SEE_CONFIGS, group=_SEE_CONFIGS, cluster=_SEE_CONFIGS),
        33: ApiNeeds(topic=_SET_CONFIGS, group=_SET_CONFIGS, cluster=_SET_CONFIGS),  # AlterConfigs.
        35: ApiNeeds(cluster=_DESCRIBE),  # DescribeLogDirs.
        36: OPEN,  # SaslAuthenticate.
        37: ApiNeeds(topic=_ALTER),  # CreatePartitions.
        42: ApiNeeds(group=_D),  # DeleteGroups.
        43: ApiNeeds(cluster=_ALTER),  # ElectLeaders.
        # IncrementalAlterConfigs.
        44: ApiNeeds(topic=_SET_CONFIGS, group=_SET_CONFIGS, cluster=_SET_CONFIGS),
        45: ApiNeeds(cluster=_ALTER),  # AlterPartitionReassignments.
        46: ApiNeeds(cluster=_DESCRIBE),  # ListPartitionReassignments.
        47: ApiNeeds(topic=_R, group=_D),  # OffsetDelete.
        48: ApiNeeds(cluster=_SEE_CONFIGS),  # DescribeClientQuotas.
        49: ApiNeeds(cluster=_SET_CONFIGS),  # AlterClientQuotas.
        50: ApiNeeds(cluster=_DESCRIBE),  # DescribeUserScramCredentials.
        51: ApiNeeds(cluster=_ALTER),  # AlterUserScramCredentials.
        60: ApiNeeds(is_filtered=True),  # DescribeCluster: addresses, as Metadata does.
        61: ApiNeeds(topic=_R),  # DescribeProducers.
        # DescribeTransactions: without the topics that the caller may not describe.
        65: ApiNeeds(topic=_DESCRIBE, transactional_id=_DESCRIBE),
        66: ApiNeeds(transactional_id=_DESCRIBE, is_filtered=True),  # ListTransactions.
        68: ApiNeeds(topic=_DESCRIBE, group=_R),  # ConsumerGroupHeartbeat.
        69: ApiNeeds(topic=_DESCRIBE, group=_DESCRIBE),  # ConsumerGroupDescribe.
        74: ApiNeeds(cluster=_SEE_CONFIGS),  # ListConfigResources.
        75: ApiNeeds(topic=_DESCRIBE, is_filtered=True),  # DescribeTopicPartitions.
        1000: ApiNeeds(transactional_id=_W),  # PublishTransactions, of Millstream.
        1001: ApiNeeds(transactional_id=_W),  # RenewTransactions, of Millstream.
    }
)
"""The needs of every API, by key."""
