"""Table of all supported APIs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from millstream.protocols.kafka.codec.declaration import Versions, versions_of
from millstream.protocols.kafka.messages.acls import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from millstream.protocols.kafka.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from millstream.protocols.kafka.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from millstream.protocols.kafka.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from millstream.protocols.kafka.messages.coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from millstream.protocols.kafka.messages.epochs import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from millstream.protocols.kafka.messages.fetch import FetchRequest, FetchResponse
from millstream.protocols.kafka.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from millstream.protocols.kafka.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from millstream.protocols.kafka.messages.log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from millstream.protocols.kafka.messages.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from millstream.protocols.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from millstream.protocols.kafka.messages.produce import ProduceRequest, ProduceResponse
from millstream.protocols.kafka.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from millstream.protocols.kafka.messages.publications import (
    PublishTransactionsRequest,
    PublishTransactionsResponse,
    RenewTransactionsRequest,
    RenewTransactionsResponse,
)
from millstream.protocols.kafka.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from millstream.protocols.kafka.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from millstream.protocols.kafka.messages.records import DeleteRecordsRequest, DeleteRecordsResponse
from millstream.protocols.kafka.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from millstream.protocols.kafka.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from millstream.protocols.kafka.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from millstream.protocols.kafka.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from millstream.protocols.kafka.messages.versions import ApiVersionsRequest, ApiVersionsResponse

PRODUCE_KEY = 0
API_VERSIONS_KEY = 18
PUBLISH_TRANSACTIONS_KEY = 1000
"""The first key of Millstream's own APIs. Kafka counts its keys from 0 and has about a hundred, so
there is no conflict for many years; and clients ignore keys that they do not know.
"""


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its key, versions, request and response."""

    key: int
    name: str
    request: type[Any]
    response: type[Any]
    versions: Versions
    """Versions that can be decoded and encoded."""
    announced: Versions
    """Versions that ApiVersions reports; wider than `versions` for Produce only."""


def _api(key: int, request: type[Any], response: type[Any]) -> Api:
    name = request.__name__.removesuffix("Request")
    versions = versions_of(request)
    # Versions 0 to 2 of Produce are refused, but librdkafka before 2.11.1 looks for them to
    # see whether the broker takes compressed batches (KAFKA-18659).
    announced = replace(versions, first=0) if key == PRODUCE_KEY else versions
    return Api(key, name, request, response, versions, announced)


_MESSAGES: Mapping[int, tuple[type[Any], type[Any]]] = {
    0: (ProduceRequest, ProduceResponse),
    1: (FetchRequest, FetchResponse),
    2: (ListOffsetsRequest, ListOffsetsResponse),
    3: (MetadataRequest, MetadataResponse),
    8: (OffsetCommitRequest, OffsetCommitResponse),
    9: (OffsetFetchRequest, OffsetFetchResponse),
    10: (FindCoordinatorRequest, FindCoordinatorResponse),
    11: (JoinGroupRequest, JoinGroupResponse),
    12: (HeartbeatRequest, HeartbeatResponse),
    13: (LeaveGroupRequest, LeaveGroupResponse),
    14: (SyncGroupRequest, SyncGroupResponse),
    15: (DescribeGroupsRequest, DescribeGroupsResponse),
    16: (ListGroupsRequest, ListGroupsResponse),
    17: (SaslHandshakeRequest, SaslHandshakeResponse),
    18: (ApiVersionsRequest, ApiVersionsResponse),
    19: (CreateTopicsRequest, CreateTopicsResponse),
    20: (DeleteTopicsRequest, DeleteTopicsResponse),
    21: (DeleteRecordsRequest, DeleteRecordsResponse),
    22: (InitProducerIdRequest, InitProducerIdResponse),
    23: (OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
    24: (AddPartitionsToTxnRequest, AddPartitionsToTxnResponse),
    25: (AddOffsetsToTxnRequest, AddOffsetsToTxnResponse),
    26: (EndTxnRequest, EndTxnResponse),
    28: (TxnOffsetCommitRequest, TxnOffsetCommitResponse),
    29: (DescribeAclsRequest, DescribeAclsResponse),
    30: (CreateAclsRequest, CreateAclsResponse),
    31: (DeleteAclsRequest, DeleteAclsResponse),
    32: (DescribeConfigsRequest, DescribeConfigsResponse),
    33: (AlterConfigsRequest, AlterConfigsResponse),
    35: (DescribeLogDirsRequest, DescribeLogDirsResponse),
    36: (SaslAuthenticateRequest, SaslAuthenticateResponse),
    37: (CreatePartitionsRequest, CreatePartitionsResponse),
    42: (DeleteGroupsRequest, DeleteGroupsResponse),
    43: (ElectLeadersRequest, ElectLeadersResponse),
    44: (IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse),
    45: (AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse),
    46: (ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse),
    47: (OffsetDeleteRequest, OffsetDeleteResponse),
    48: (DescribeClientQuotasRequest, DescribeClientQuotasResponse),
    49: (AlterClientQuotasRequest, AlterClientQuotasResponse),
    50: (DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse),
    51: (AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse),
    60: (DescribeClusterRequest, DescribeClusterResponse),
    61: (DescribeProducersRequest, DescribeProducersResponse),
    65: (DescribeTransactionsRequest, DescribeTransactionsResponse),
    66: (ListTransactionsRequest, ListTransactionsResponse),
    68: (ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse),
    69: (ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse),
    74: (ListConfigResourcesRequest, ListConfigResourcesResponse),
    75: (DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse),
    PUBLISH_TRANSACTIONS_KEY: (PublishTransactionsRequest, PublishTransactionsResponse),
    1001: (RenewTransactionsRequest, RenewTransactionsResponse),
}

APIS: Mapping[int, Api] = MappingProxyType(
    {key: _api(key, request, response) for key, (request, response) in _MESSAGES.items()}
)
