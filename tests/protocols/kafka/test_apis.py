"""What is announced to clients."""

from __future__ import annotations

import pytest
from kio.schema.index import api_key_map

from millstream.protocols.kafka.apis import APIS, PUBLISH_TRANSACTIONS_KEY
from millstream.protocols.kafka.codec.declaration import versions_of

# The table of the design: key, name, first and last version.
ANNOUNCED = """
    0 Produce 0 13
    1 Fetch 4 18
    2 ListOffsets 1 11
    3 Metadata 0 13
    8 OffsetCommit 2 10
    9 OffsetFetch 1 10
    10 FindCoordinator 0 6
    11 JoinGroup 0 9
    12 Heartbeat 0 4
    13 LeaveGroup 0 5
    14 SyncGroup 0 5
    15 DescribeGroups 0 6
    16 ListGroups 0 5
    17 SaslHandshake 0 1
    18 ApiVersions 0 4
    19 CreateTopics 2 7
    20 DeleteTopics 1 6
    21 DeleteRecords 0 2
    22 InitProducerId 0 5
    23 OffsetForLeaderEpoch 2 4
    24 AddPartitionsToTxn 0 5
    25 AddOffsetsToTxn 0 4
    26 EndTxn 0 5
    28 TxnOffsetCommit 0 5
    29 DescribeAcls 1 3
    30 CreateAcls 1 3
    31 DeleteAcls 1 3
    32 DescribeConfigs 1 4
    33 AlterConfigs 0 2
    35 DescribeLogDirs 1 4
    36 SaslAuthenticate 0 2
    37 CreatePartitions 0 3
    42 DeleteGroups 0 2
    43 ElectLeaders 0 2
    44 IncrementalAlterConfigs 0 1
    45 AlterPartitionReassignments 0 1
    46 ListPartitionReassignments 0 0
    47 OffsetDelete 0 0
    48 DescribeClientQuotas 0 1
    49 AlterClientQuotas 0 1
    50 DescribeUserScramCredentials 0 0
    51 AlterUserScramCredentials 0 0
    60 DescribeCluster 0 2
    61 DescribeProducers 0 0
    65 DescribeTransactions 0 0
    66 ListTransactions 0 2
    68 ConsumerGroupHeartbeat 0 1
    69 ConsumerGroupDescribe 0 1
    74 ListConfigResources 0 1
    75 DescribeTopicPartitions 0 0
    1000 PublishTransactions 0 0
    1001 RenewTransactions 0 0
"""


def test_exactly_the_table_of_the_design_is_announced():
    found = [
        f"{key} {api.name} {api.announced.first} {api.announced.last}" for key, api in APIS.items()
    ]
    assert found == [line.strip() for line in ANNOUNCED.strip().splitlines()]


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_the_table_fits_its_messages(api):
    assert api.request.__name__ == f"{api.name}Request"
    assert api.response.__name__ == f"{api.name}Response"
    assert versions_of(api.request) == versions_of(api.response) == api.versions


def test_what_is_ours_is_far_from_what_kafka_counts():
    ours = [key for key in APIS if key not in api_key_map]
    assert ours == [PUBLISH_TRANSACTIONS_KEY, PUBLISH_TRANSACTIONS_KEY + 1]
    assert min(ours) > 5 * max(api_key_map)


def test_only_produce_announces_what_it_does_not_speak():
    wider = {api.name for api in APIS.values() if api.announced != api.versions}
    assert wider == {"Produce"}
    assert APIS[0].versions.first == 3
