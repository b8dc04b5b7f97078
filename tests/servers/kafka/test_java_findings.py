"""Behaviour that Kafka's tools and Java clients rely on, found by running them against a node."""

from __future__ import annotations

import time

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from millstream.protocols.kafka.messages.groups import LeaveGroupRequest, LeaveGroupRequestMember
from millstream.protocols.kafka.messages.producers import InitProducerIdRequest
from millstream.protocols.kafka.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestTopic,
    DescribeTransactionsRequest,
    EndTxnRequest,
)


def beat(client, group, topic, member, *, epoch=0, instance=None):
    is_joining = epoch == 0
    return client.call(
        ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            instance_id=instance,
            member_epoch=epoch,
            rebalance_timeout_ms=5_000 if is_joining else -1,
            subscribed_topic_names=(topic,) if is_joining else None,
            topic_partitions=() if is_joining else None,
        )
    )


def remove(client, group, *members):
    wanted = tuple(LeaveGroupRequestMember(**member) for member in members)
    answer = client.call(LeaveGroupRequest(group_id=group, members=wanted))
    assert answer.error_code == 0
    return [member.error_code for member in answer.members]


def test_an_operator_removes_members_of_a_consumer_group(client, topic):
    assert beat(client, "removal", topic, "a", instance="static").error_code == 0
    assert beat(client, "removal", topic, "b").error_code == 0
    codes = remove(
        client,
        "removal",
        {"member_id": "", "group_instance_id": "static"},
        {"member_id": "b"},
        {"member_id": "stranger"},
        {"member_id": "", "group_instance_id": "strange"},
    )
    assert codes == [0, 0, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID]
    for member, instance in (("a", "static"), ("b", None)):
        answer = beat(client, "removal", topic, member, epoch=1, instance=instance)
        assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_names_the_wrong_member_for_an_instance_id_removes_nobody(client, topic):
    beat(client, "wrong-name", topic, "a", instance="static")
    codes = remove(client, "wrong-name", {"member_id": "b", "group_instance_id": "static"})
    assert codes == [ErrorCode.FENCED_INSTANCE_ID]
    answer = beat(client, "wrong-name", topic, "a", epoch=1, instance="static")
    assert answer.error_code == 0


def state_of(client, name):
    answer = client.call(DescribeTransactionsRequest(transactional_ids=(name,)))
    return answer.transaction_states[0].transaction_state


def test_a_producer_whose_transaction_timed_out_aborts_and_goes_on(client, topic):
    made = client.call(InitProducerIdRequest(transactional_id="late", transaction_timeout_ms=1))
    client.call(
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="late",
            v3_and_below_producer_id=made.producer_id,
            v3_and_below_producer_epoch=made.producer_epoch,
            v3_and_below_topics=(AddPartitionsToTxnRequestTopic(name=topic, partitions=(0,)),),
        ),
        3,
    )
    deadline = time.monotonic() + 20
    while state_of(client, "late") != "CompleteAbort":
        assert time.monotonic() < deadline, "the transaction never timed out"

    def end(version, *, committed):
        return client.call(
            EndTxnRequest(
                transactional_id="late",
                producer_id=made.producer_id,
                producer_epoch=made.producer_epoch,
                committed=committed,
            ),
            version,
        )

    assert end(4, committed=False).error_code == ErrorCode.PRODUCER_FENCED
    assert end(5, committed=True).error_code == ErrorCode.INVALID_TXN_STATE
    answer = end(5, committed=False)
    assert (answer.error_code, answer.producer_id) == (0, made.producer_id)
    assert answer.producer_epoch == made.producer_epoch + 1
