"""The machines of a cluster: leaders, followers, in-sync replicas, decisions of the controller.

Everything here is pure: no event loop, socket, file, clock, randomness or logger. The broker feeds
events in and carries out what comes back; the explorer and the simulator of `millstream.testing`
run the same code. `docs/internals/replication.md` has the rules and the proof.

    replication_state.py  what the metadata store has of a partition: leader, epoch, ISR, replicas
    epochs.py             which leader epoch began at which offset
    life.py               whether a node still has the directory of its earlier lives
    lease.py              how long a node may believe in its own lease
    replica_fetch.py      fetch of a follower, and what the leader answers
    isr.py                when a replica joins and leaves the in-sync replicas (ISR)
    leader.py             the leader of one partition
    follower.py           a follower of one partition
    controller.py         elections, assignment of replicas, reassignment, balance
"""
