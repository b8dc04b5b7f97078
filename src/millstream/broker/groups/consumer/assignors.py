"""Assignors: the strategies by which the server assigns partitions to members.

An assignor is a function of the members, in the order in which they joined, and of the existing
partitions; the same input gives the same assignment. Each partition of a topic with subscribers is
assigned to exactly one of them.

`uniform` keeps the members' loads as equal as their subscriptions allow, and of all such
assignments takes one close to the previous one. Members with the same subscription end within one
partition of each other, and only as many partitions move as that needs.

`range` gives each member a run of consecutive partitions of each topic. Topics with equally many
partitions and the same subscribers are split at the same positions, so that the member that has
partition 3 of one has partition 3 of the other. Runs follow the order of joining: a new member
comes last, and when one leaves, only partitions of members after it move.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from millstream.broker.groups.consumer.partition_set import PartitionSet, count, partition_set

_PASSES_MAX = 16
"""Rounds of balancing. One is enough if all subscriptions are equal; with overlapping
subscriptions each round roughly halves the imbalance, so that after these nothing worth moving is
left.
"""


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """A member, as an assignor sees it."""

    member_id: str
    topics: frozenset[UUID]
    target: PartitionSet = field(default_factory=dict)
    """The partitions that it should have had so far."""


Assignor: TypeAlias = Callable[
    [Sequence[MemberSubscription], Mapping[UUID, int]], dict[str, PartitionSet]
]


def assign_ranges(
    subscribers: Sequence[MemberSubscription], partition_counts: Mapping[UUID, int]
) -> dict[str, PartitionSet]:
    """Split each topic into runs, one for each subscriber."""
    runs: list[dict[UUID, frozenset[int]]] = [{} for _ in subscribers]
    for topic_ids, members in _pools(subscribers, partition_counts):
        for topic in topic_ids:
            length, longer = divmod(partition_counts[topic], len(members))
            start = 0
            for place, member in enumerate(members):
                end = start + length + (place < longer)
                if start == end:
                    break
                runs[member][topic] = frozenset(range(start, end))
                start = end
    return {subscriber.member_id: run for subscriber, run in zip(subscribers, runs, strict=True)}


def assign_uniformly(
    subscribers: Sequence[MemberSubscription], partition_counts: Mapping[UUID, int]
) -> dict[str, PartitionSet]:
    """Balance the members' loads, moving as little as that needs."""
    division = _UniformAssignment(subscribers, partition_counts)
    division.place_unowned()
    for _ in range(_PASSES_MAX):
        if not division.even_out():
            break
    return division.result()


def _pools(
    subscribers: Sequence[MemberSubscription], partition_counts: Mapping[UUID, int]
) -> list[tuple[list[UUID], list[int]]]:
    """Group the topics that have subscribers by these: by number, in order of joining.

    Most groups have a handful of different subscriptions at most. So members are grouped by
    subscription first, and nothing here takes as long as members times topics.
    """
    kinds: dict[frozenset[UUID], list[int]] = {}
    for number, subscriber in enumerate(subscribers):
        kinds.setdefault(subscriber.topics, []).append(number)
    wanted: dict[UUID, list[int]] = {}
    for kind, topics in enumerate(kinds):
        for topic in topics & partition_counts.keys():
            wanted.setdefault(topic, []).append(kind)
    pools: dict[tuple[int, ...], list[UUID]] = {}
    for topic in sorted(wanted, key=lambda topic: topic.int):
        pools.setdefault(tuple(wanted[topic]), []).append(topic)
    members_of = list(kinds.values())
    return [
        (topic_ids, sorted(number for kind in pool for number in members_of[kind]))
        for pool, topic_ids in pools.items()
    ]


class _Pool:
    """The partitions of topics that have the same subscribers: each may go to any of these.

    The number of partitions of each member is always known; they are listed only for members that
    give or take.
    """

    def __init__(self, topics: list[UUID], members: list[int]) -> None:
        self.topics = topics
        self.topic_set = frozenset(topics)
        self.members = members
        self.sizes: dict[int, int] = dict.fromkeys(members, 0)
        self.unowned: list[tuple[UUID, int]] = []
        self._lists: dict[int, list[tuple[UUID, int]]] = {}

    def list_of(self, number: int, kept: PartitionSet) -> list[tuple[UUID, int]]:
        """Return a member's partitions of this pool, to be changed. Initially those in `kept`."""
        if number not in self._lists:
            mine = (topic for topic in kept if topic in self.topic_set)
            self._lists[number] = [
                (topic, partition)
                for topic in sorted(mine, key=lambda topic: topic.int)
                for partition in sorted(kept[topic])
            ]
        return self._lists[number]


class _UniformAssignment:
    """An assignment of all pools that is being balanced."""

    def __init__(
        self, subscribers: Sequence[MemberSubscription], partition_counts: Mapping[UUID, int]
    ) -> None:
        self._subscribers = subscribers
        self._counts = partition_counts
        self._owned: dict[UUID, set[int]] = {}
        self._kept = [self._keep(subscriber) for subscriber in subscribers]
        self._loads = [count(kept) for kept in self._kept]
        self._changed: dict[int, dict[_Pool, None]] = {}
        self._pools = [_Pool(*pool) for pool in _pools(subscribers, partition_counts)]
        self._fill_pools()
        # Partitions with few candidates are placed first: the others can still balance the loads.
        self._pools.sort(key=lambda pool: (-self._partitions_per_member(pool), len(pool.members)))

    def _keep(self, subscriber: MemberSubscription) -> PartitionSet:
        """Return the member's partitions that it still wants and that no other member has.

        The very same set is returned if nothing is missing: then nothing has to be compared.
        """
        kept = {}
        for topic, numbers in subscriber.target.items():
            size = self._counts.get(topic, 0) if topic in subscriber.topics else 0
            others = self._owned.setdefault(topic, set())
            is_whole = max(numbers) < size and others.isdisjoint(numbers)
            mine = numbers if is_whole else frozenset(n for n in numbers if n < size) - others
            others |= mine
            if mine:
                kept[topic] = mine
        return subscriber.target if kept == subscriber.target else kept

    def _fill_pools(self) -> None:
        pool_of = {topic: pool for pool in self._pools for topic in pool.topics}
        for number, kept in enumerate(self._kept):
            for topic, numbers in kept.items():
                pool_of[topic].sizes[number] += len(numbers)
        for topic, pool in pool_of.items():
            free = set(range(self._counts[topic])) - self._owned.get(topic, set())
            pool.unowned.extend((topic, partition) for partition in sorted(free))

    def _partitions_per_member(self, pool: _Pool) -> float:
        return sum(self._counts[topic] for topic in pool.topics) / len(pool.members)

    def place_unowned(self) -> None:
        """Give each partition without an owner to the member with the least load."""
        for pool in self._pools:
            least = [(self._loads[number], number) for number in pool.members]
            heapq.heapify(least)
            for partition in pool.unowned:
                load, number = least[0]
                heapq.heapreplace(least, (load + 1, number))
                self._give(pool, number, partition)

    def even_out(self) -> bool:
        """Move partitions from the most to the least loaded members; returns whether any moved."""
        moves = [self._even_out(pool) for pool in self._pools]
        return any(moves)

    def _even_out(self, pool: _Pool) -> bool:
        """Balance one pool; only members that own some of it can give.

        Both heaps are exact at their tops only: an entry whose load is not the member's any more is
        dropped when it gets there.
        """
        loads = self._loads
        least = [(loads[number], number) for number in pool.members]
        most = [(-loads[number], -number) for number in pool.members if pool.sizes[number]]
        heapq.heapify(least)
        heapq.heapify(most)
        has_moved = False
        while most:
            (negative_load, negative_number), (load_min, taker) = most[0], least[0]
            giver = -negative_number
            if loads[giver] != -negative_load or not pool.sizes[giver]:
                heapq.heappop(most)
            elif loads[taker] != load_min:
                heapq.heappop(least)
            elif loads[giver] - load_min <= 1:
                break
            else:
                self._give(pool, taker, self._take(pool, giver))
                for number in (giver, taker):
                    heapq.heappush(most, (-loads[number], -number))
                    heapq.heappush(least, (loads[number], number))
                has_moved = True
        return has_moved

    def _give(self, pool: _Pool, number: int, partition: tuple[UUID, int]) -> None:
        pool.list_of(number, self._kept[number]).append(partition)
        self._note(pool, number, 1)

    def _take(self, pool: _Pool, number: int) -> tuple[UUID, int]:
        self._note(pool, number, -1)
        return pool.list_of(number, self._kept[number]).pop()

    def _note(self, pool: _Pool, number: int, by: int) -> None:
        pool.sizes[number] += by
        self._loads[number] += by
        self._changed.setdefault(number, {})[pool] = None

    def result(self) -> dict[str, PartitionSet]:
        """Return the target of each member."""
        return {
            subscriber.member_id: self._target(number)
            for number, subscriber in enumerate(self._subscribers)
        }

    def _target(self, number: int) -> PartitionSet:
        if number not in self._changed:
            return self._kept[number]
        kept, pools = self._kept[number], self._changed[number]
        untouched = (
            (topic, numbers)
            for topic, numbers in kept.items()
            if not any(topic in pool.topic_set for pool in pools)
        )
        listed: dict[UUID, list[int]] = {}
        for pool in pools:
            for topic, partition in pool.list_of(number, kept):
                listed.setdefault(topic, []).append(partition)
        return partition_set((*untouched, *listed.items()))


UNIFORM = "uniform"
RANGE = "range"

ASSIGNORS: Mapping[str, Assignor] = {UNIFORM: assign_uniformly, RANGE: assign_ranges}
DEFAULT_ASSIGNOR = UNIFORM
