"""Proposals as transactions of the metadata store.

A transaction whose outcome is unknown is never repeated blindly: the state is read again, and only
what it says is acted on.
"""

from __future__ import annotations

import enum
import logging

from millstream.cluster.control.cluster_state import (
    CONTROLLER_KEY,
    ClusterState,
    PartitionId,
    partition_key,
)
from millstream.cluster.control.node_row import node_key
from millstream.cluster.replication_state import Proposal, decode_state, encode_state
from millstream.errors import OutcomeUnknown, Unavailable
from millstream.metadata.interface import Compare, CompareCreated, Condition, Metadata

logger = logging.getLogger(__name__)


class ProposalOutcome(enum.Enum):
    """What became of a proposal."""

    APPLIED = "applied"
    REFUSED = "refused"
    """Something it compares with has changed; the present state was read."""
    UNKNOWN = "unknown"
    """It may have been applied, or may be later."""


class Proposer:
    """Makes transactions of proposals, and keeps the state of the cluster up to date with them."""

    def __init__(self, metadata: Metadata, state: ClusterState) -> None:
        self._metadata = metadata
        self._state = state

    async def propose(self, partition: PartitionId, proposal: Proposal) -> ProposalOutcome:
        """Carry out a proposal. `Unavailable` of the store counts as refused."""
        key = partition_key(partition)
        compares: list[Condition] = [Compare(key, proposal.revision)]
        compares += (CompareCreated(node_key(node), epoch) for node, epoch in proposal.nodes)
        if proposal.controller_epoch is not None:
            compares.append(CompareCreated(CONTROLLER_KEY, proposal.controller_epoch))
        try:
            revision = await self._metadata.transact(
                compares=compares, puts={key: encode_state(proposal.state)}
            )
        except Unavailable:
            return ProposalOutcome.REFUSED
        except OutcomeUnknown:
            return await self._after_unknown(partition, key, proposal)
        if revision is None:
            await self.refresh(partition)
            return ProposalOutcome.REFUSED
        self._state.apply_partition(partition, proposal.state.at(revision))
        return ProposalOutcome.APPLIED

    async def carry_out(self, partition: PartitionId, proposal: Proposal) -> None:
        """Carry out a proposal; raises `Unavailable` if it is not known to be made."""
        outcome = await self.propose(partition, proposal)
        if outcome is not ProposalOutcome.APPLIED:
            raise Unavailable(f"the state of the partition was not changed: {outcome.value}")

    async def _after_unknown(
        self, partition: PartitionId, key: str, proposal: Proposal
    ) -> ProposalOutcome:
        logger.warning("%s: the outcome of a proposal is unknown; reading the state", key)
        await self.refresh(partition)
        known = self._state.partitions.get(partition)
        if known is not None and known == proposal.state.at(known.revision):
            return ProposalOutcome.APPLIED
        return ProposalOutcome.UNKNOWN

    async def refresh(self, partition: PartitionId) -> None:
        """Read the state of a partition from the store, if it can be reached."""
        try:
            entry = await self._metadata.get(partition_key(partition))
        except (Unavailable, OutcomeUnknown):
            return  # The watch brings it.
        if entry is not None:
            self._state.apply_partition(partition, decode_state(entry.value, entry.revision))
