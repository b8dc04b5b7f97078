"""Choice of nodes by `millstream cluster reassign --replicas`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click
import pytest

from millstream.cli.cluster.replica_choice import choose_replicas


def node(number: int, rack: str | None = None, **state: bool) -> Any:
    well = {"is_alive": True, "is_stopping": False, "is_removed": False}
    return {"node_id": number, "rack": rack, **well, **state}


def partition(
    number: int, replicas: Sequence[int], *, topic: str = "t", removing: Sequence[int] = ()
) -> Any:
    return {
        "topic": topic,
        "partition": number,
        "replicas": list(replicas),
        "removing": list(removing),
    }


def chosen(partitions: list[Any], count: int, nodes: list[Any]) -> list[list[int]]:
    return choose_replicas(partitions, count, nodes, partitions)


def test_replicas_of_one_node_are_spread_over_three_and_so_are_the_leaders() -> None:
    partitions = [partition(number, [1]) for number in range(9)]
    targets = chosen(partitions, 3, [node(1), node(2), node(3)])
    assert all(sorted(target) == [1, 2, 3] for target in targets)
    assert Counter(target[0] for target in targets) == {1: 3, 2: 3, 3: 3}


def test_new_replicas_go_to_the_nodes_with_the_fewest() -> None:
    partitions = [partition(number, [1]) for number in range(8)]
    targets = chosen(partitions, 2, [node(number) for number in (1, 2, 3, 4, 5)])
    counts = Counter(replica for target in targets for replica in target)
    assert counts == {1: 8, 2: 2, 3: 2, 4: 2, 5: 2}


def test_replicas_are_in_different_racks_as_far_as_possible() -> None:
    nodes = [node(1, "a"), node(2, "a"), node(3, "b"), node(4, "c")]
    (target,) = chosen([partition(0, [1])], 3, nodes)
    assert sorted(target) == [1, 3, 4]


def test_replicas_of_nodes_that_are_gone_or_leave_are_replaced() -> None:
    nodes = [node(1), node(2, is_alive=False), node(3, is_removed=True), node(4), node(5)]
    (target,) = chosen([partition(0, [1, 2, 3])], 3, nodes)
    assert sorted(target) == [1, 4, 5]


def test_fewer_replicas_stay_where_they_are() -> None:
    (target,) = chosen([partition(0, [3, 1, 2], removing=[3])], 1, [node(1), node(2), node(3)])
    assert target == [1]


def test_more_replicas_than_nodes_are_refused_with_both_numbers() -> None:
    with pytest.raises(click.ClickException, match="at most 2, the number of nodes, got 3"):
        chosen([partition(0, [1])], 3, [node(1), node(2), node(3, is_stopping=True)])
