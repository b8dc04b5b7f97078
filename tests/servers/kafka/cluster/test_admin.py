"""Administration of a cluster by Kafka's protocol, sent to any of its nodes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from millstream.cluster.control.cluster_state import PartitionId
from millstream.cluster.replication_state import ReplicationState
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
)
from millstream.protocols.kafka.messages.log_dirs import DescribeLogDirsRequest
from millstream.protocols.kafka.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequestTopic,
)
from millstream.protocols.kafka.messages.topics import (
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    ElectLeadersRequest,
    ElectLeadersRequestTopic,
)
from tests.cluster.local_cluster import LocalCluster, local_cluster, submit, until, values_of
from tests.in_loop import in_loop
from tests.servers.kafka.client import RawClient

T = TypeVar("T")
PATIENCE = 30.0


def address(cluster: LocalCluster, node_id: int = 1) -> str:
    return str(cluster.nodes[node_id].kafka)


async def asked(cluster: LocalCluster, node_id: int, ask: Callable[[AdminClient], T]) -> T:
    """Ask one node with librdkafka's client, beside the event loop of the nodes."""
    admin = AdminClient({"bootstrap.servers": address(cluster, node_id)})
    return await asyncio.to_thread(ask, admin)


def describe(kind: ConfigResource.Type, name: str) -> Callable[[AdminClient], Any]:
    def ask(admin: AdminClient) -> Any:
        (future,) = admin.describe_configs([ConfigResource(kind, name)]).values()
        return future.result(PATIENCE)

    return ask


async def called(cluster: LocalCluster, node_id: int, request: Any) -> Any:
    def call() -> Any:
        with RawClient(address(cluster, node_id)) as client:
            return client.call(request)

    return await asyncio.to_thread(call)


async def created(cluster: LocalCluster, topic: NewTopic, node_id: int = 1) -> None:
    def create(admin: AdminClient) -> None:
        for future in admin.create_topics([topic], operation_timeout=PATIENCE).values():
            future.result(PATIENCE)

    await asked(cluster, node_id, create)


def assigned(topic: str, replicas: list[list[int]], **options: Any) -> NewTopic:
    """Return a topic whose client chooses the nodes."""
    count = len(replicas)
    return NewTopic(topic, num_partitions=count, replica_assignment=replicas, **options)


def state_of(
    cluster: LocalCluster, topic: str, index: int = 0, node_id: int = 1
) -> ReplicationState:
    found = cluster.nodes[node_id].broker.topics.get(topic)
    return cluster.member(node_id).state.partitions[PartitionId(found.id, index)]


def code_of(error: pytest.ExceptionInfo[KafkaException]) -> str:
    return str(error.value.args[0].name())


async def reassigned(
    cluster: LocalCluster,
    node_id: int,
    topic: str,
    replicas: tuple[int, ...] | None,
    index: int = 0,
) -> tuple[int, str | None]:
    response = await called(
        cluster,
        node_id,
        AlterPartitionReassignmentsRequest(
            topics=(
                AlterPartitionReassignmentsRequestTopic(
                    name=topic,
                    partitions=(
                        AlterPartitionReassignmentsRequestPartition(
                            partition_index=index, replicas=replicas
                        ),
                    ),
                ),
            )
        ),
    )
    (result,) = response.responses[0].partitions
    return result.error_code, result.error_message


# Topics.


@in_loop
async def test_a_topic_gets_the_replicas_that_its_client_asks_for(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await created(cluster, NewTopic("two", num_partitions=3, replication_factor=2))
        states = [state_of(cluster, "two", index) for index in range(3)]
        assert {len(state.replicas) for state in states} == {2}
        assert {node for state in states for node in state.replicas} == {1, 2, 3}


@in_loop
async def test_a_topic_has_three_replicas_unless_its_client_asks_for_others(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await created(cluster, NewTopic("t", num_partitions=1, replication_factor=-1))
        assert sorted(state_of(cluster, "t").replicas) == [1, 2, 3]
        configs = await asked(cluster, 2, describe(ConfigResource.Type.TOPIC, "t"))
        assert configs["min.insync.replicas"].value == "2"


@in_loop
async def test_more_replicas_than_nodes_are_refused(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        with pytest.raises(KafkaException) as refused:
            await created(cluster, NewTopic("t", num_partitions=1, replication_factor=4))
        assert code_of(refused) == "INVALID_REPLICATION_FACTOR"
        assert "between 1 and 3, the number of nodes, got 4" in str(refused.value)
        assert cluster.nodes[1].broker.topics.find("t") is None


@in_loop
async def test_a_client_may_choose_the_nodes_of_each_partition(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        chosen = [[3, 1], [2, 3]]
        await created(cluster, assigned("t", chosen))
        assert [list(state_of(cluster, "t", index).replicas) for index in (0, 1)] == chosen
        await until(lambda: cluster.leader_of("t", 0) == 3)


@in_loop
@pytest.mark.parametrize("chosen", [[[1, 1]], [[1, 9]], [[1], [1, 2]]])
async def test_an_assignment_that_is_not_possible_is_refused(
    tmp_path: Path, chosen: list[list[int]]
):
    async with local_cluster(tmp_path) as cluster:
        with pytest.raises(KafkaException) as refused:
            await created(cluster, assigned("t", chosen))
        assert code_of(refused) == "INVALID_REPLICA_ASSIGNMENT"


@in_loop
async def test_new_partitions_get_the_nodes_that_a_client_chooses(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await created(cluster, NewTopic("t", num_partitions=1, replication_factor=2))
        before = state_of(cluster, "t").replicas

        def grow(admin: AdminClient) -> None:
            more = NewPartitions("t", 3, [[3, 2], [1, 3]])
            (future,) = admin.create_partitions([more]).values()
            future.result(PATIENCE)

        await asked(cluster, 2, grow)
        await until(lambda: cluster.leader_of("t", 2) is not None)
        assert state_of(cluster, "t", 0).replicas == before
        assert state_of(cluster, "t", 1).replicas == (3, 2)
        assert state_of(cluster, "t", 2).replicas == (1, 3)


@in_loop
async def test_a_config_can_be_changed_while_a_node_is_down(tmp_path: Path):
    """The replicas of a topic are checked when it is created, not with every change."""
    async with local_cluster(tmp_path) as cluster:
        await created(cluster, NewTopic("t", num_partitions=1, replication_factor=3))
        await cluster.stop_node(3)
        await cluster.nodes[1].broker.topics.alter("t", {"retention.ms": "1000"})


@in_loop
async def test_a_validated_topic_tells_the_replicas_that_it_would_have(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        wanted = CreateTopicsRequestTopic(name="t", num_partitions=1, replication_factor=-1)
        request = CreateTopicsRequest(topics=(wanted,), validate_only=True)
        (result,) = (await called(cluster, 2, request)).topics
        assert (result.error_code, result.replication_factor) == (0, 3)


# The cluster.


@in_loop
async def test_every_node_describes_the_whole_cluster(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        for node_id in cluster.nodes:
            found = await asked(
                cluster, node_id, lambda admin: admin.describe_cluster().result(PATIENCE)
            )
            assert found.cluster_id == "test"
            assert sorted(node.id for node in found.nodes) == [1, 2, 3]
            assert found.controller.id == cluster.member(1).state.controller_id


@in_loop
async def test_a_node_tells_its_own_configs_and_refuses_those_of_others(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        configs = await asked(cluster, 2, describe(ConfigResource.Type.BROKER, "2"))
        assert configs["default.replication.factor"].value == "3"
        assert configs["node.id"].value == "2"
        resource = DescribeConfigsRequestResource(
            resource_type=4, resource_name="2", configuration_keys=None
        )
        (result,) = (
            await called(cluster, 1, DescribeConfigsRequest(resources=(resource,)))
        ).results
        assert result.error_code == ErrorCode.INVALID_REQUEST
        assert result.error_message == (
            f"node must be 1, got '2'; ask node 2 at {address(cluster, 2)} for its own"
        )


@in_loop
async def test_a_node_lists_the_directories_of_its_own_replicas(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await created(cluster, assigned("t", [[1, 2], [2, 3]]))
        for node_id, indexes in ((1, [0]), (2, [0, 1]), (3, [1])):
            response = await called(cluster, node_id, DescribeLogDirsRequest(topics=None))
            (directory,) = response.results
            assert directory.log_dir == str(tmp_path / str(node_id))
            (topic,) = (topic for topic in directory.topics if topic.name == "t")
            assert [partition.partition_index for partition in topic.partitions] == indexes


# Elections.


@in_loop
async def test_the_preferred_replica_leads_again_when_an_operator_says_so(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await created(cluster, assigned("t", [[2, 1, 3]]))
        await until(lambda: cluster.leader_of("t") == 2)
        await submit(cluster.partition(2, "t"), "a")
        await cluster.stop_node(2)
        await until(lambda: cluster.leader_of("t") in (1, 3))
        await cluster.start_node(2)
        await until(lambda: 2 in state_of(cluster, "t").isr_nodes)
        leader = cluster.leader_of("t")
        assert leader in (1, 3)

        def elect(admin: AdminClient) -> Any:
            partitions = [TopicPartition("t", 0)]
            return admin.elect_leaders(ElectionType.PREFERRED, partitions).result(PATIENCE)

        assert (await asked(cluster, 3, elect))[TopicPartition("t", 0)] is None
        await until(lambda: cluster.leader_of("t") == 2)
        assert values_of(cluster.partition(2, "t")) == ["a"]
        again = (await asked(cluster, 1, elect))[TopicPartition("t", 0)]
        assert again.name() == "ELECTION_NOT_NEEDED"


@in_loop
async def test_a_preferred_replica_that_is_down_is_not_elected(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await created(cluster, assigned("t", [[2, 1, 3]]))
        await cluster.stop_node(2)
        await until(lambda: cluster.leader_of("t") in (1, 3))
        response = await called(cluster, 1, elect_request("t"))
        (result,) = response.replica_election_results[0].partition_result
        assert result.error_code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        everything = await called(cluster, 1, ElectLeadersRequest(topic_partitions=None))
        assert "t" in {topic.topic for topic in everything.replica_election_results}


def elect_request(topic: str, kind: int = 0) -> ElectLeadersRequest:
    partitions = (ElectLeadersRequestTopic(topic=topic, partitions=(0,)),)
    return ElectLeadersRequest(election_type=kind, topic_partitions=partitions)


@in_loop
async def test_an_unclean_election_needs_that_no_clean_one_is_possible(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await created(cluster, assigned("t", [[2, 3]]))
        response = await called(cluster, 1, elect_request("t", kind=1))
        (result,) = response.replica_election_results[0].partition_result
        assert result.error_code == ErrorCode.ELECTION_NOT_NEEDED
        cluster.nodes[1].broker.topics.get("t")
        await created(cluster, assigned("lone", [[2]]))
        await cluster.stop_node(2)
        await until(lambda: 2 not in cluster.member(1).state.nodes)
        response = await called(cluster, 1, elect_request("lone", kind=1))
        (result,) = response.replica_election_results[0].partition_result
        assert result.error_code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


@in_loop
async def test_an_unclean_election_gives_a_partition_a_leader_again(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await created(
            cluster,
            assigned("t", [[2, 3]], config={"min.insync.replicas": "1"}),
        )
        await until(lambda: cluster.leader_of("t") == 2)
        cluster.isolate(3)
        await until(lambda: state_of(cluster, "t").isr_nodes == (2,))
        await submit(cluster.partition(2, "t"), "lost")
        await cluster.stop_node(2)
        cluster.heal(3)
        await until(lambda: 3 in cluster.member(1).state.nodes)
        await until(lambda: 2 not in cluster.member(1).state.nodes)
        assert cluster.leader_of("t") is None
        response = await called(cluster, 1, elect_request("t", kind=1))
        (result,) = response.replica_election_results[0].partition_result
        assert (result.error_code, result.error_message) == (0, None)
        await until(lambda: cluster.leader_of("t") == 3)
        assert values_of(cluster.partition(3, "t")) == []
        state = state_of(cluster, "t")
        assert state.unclean_epochs == (state.leader_epoch,)


# Reassignments.


@in_loop
async def test_a_partition_moves_to_other_nodes_with_its_records(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await created(cluster, assigned("t", [[1, 2]]))
        await until(lambda: cluster.leader_of("t") == 1)
        await submit(cluster.partition(1, "t"), "a", "b")
        assert await reassigned(cluster, 2, "t", (3, 2)) == (0, None)
        await until(lambda: state_of(cluster, "t").replicas == (3, 2))
        await until(lambda: cluster.leader_of("t") in (2, 3))
        assert values_of(cluster.partition(3, "t")) == ["a", "b"]
        leader = cluster.leader_of("t")
        assert leader is not None
        await submit(cluster.partition(leader, "t"), "c")
        listed = await called(cluster, 1, ListPartitionReassignmentsRequest(topics=None))
        assert "t" not in {topic.name for topic in listed.topics}


@in_loop
async def test_a_reassignment_is_listed_until_it_is_cancelled(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await created(cluster, assigned("t", [[1, 2]]))
        await until(lambda: cluster.leader_of("t") == 1)
        cluster.isolate(3)  # It never catches up.
        assert await reassigned(cluster, 2, "t", (1, 3)) == (0, None)
        everything = ListPartitionReassignmentsRequest(topics=None)
        listed = await called(cluster, 2, everything)
        (topic,) = (topic for topic in listed.topics if topic.name == "t")
        (moving,) = topic.partitions
        assert (moving.replicas, moving.adding_replicas, moving.removing_replicas) == (
            (1, 3, 2),
            (3,),
            (2,),
        )
        other = ListPartitionReassignmentsRequestTopic(name="t", partition_indexes=(7,))
        listed = await called(cluster, 2, ListPartitionReassignmentsRequest(topics=(other,)))
        assert listed.topics == ()
        assert await reassigned(cluster, 2, "t", None) == (0, None)
        await until(lambda: state_of(cluster, "t").replicas == (1, 2))
        code, message = await reassigned(cluster, 2, "t", None)
        assert code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert message == "t/0 is not being reassigned"
        cluster.heal(3)


@in_loop
async def test_a_reassignment_that_is_not_possible_is_refused(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await created(cluster, assigned("t", [[1, 2]]))
        for replicas in ((), (1, 1), (1, 9)):
            code, message = await reassigned(cluster, 1, "t", replicas)
            assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
            assert message == f"replicas must be different nodes of [1, 2, 3], got {list(replicas)}"
        unknown, _ = await reassigned(cluster, 1, "t", (1,), index=5)
        assert unknown == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        request = AlterPartitionReassignmentsRequest(
            allow_replication_factor_change=False,
            topics=(
                AlterPartitionReassignmentsRequestTopic(
                    name="t",
                    partitions=(
                        AlterPartitionReassignmentsRequestPartition(
                            partition_index=0, replicas=(1, 2, 3)
                        ),
                    ),
                ),
            ),
        )
        response = await called(cluster, 1, request)
        (result,) = itertools.chain(*(topic.partitions for topic in response.responses))
        assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert state_of(cluster, "t").replicas == (1, 2)
