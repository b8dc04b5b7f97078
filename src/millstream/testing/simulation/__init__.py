"""Simulation of replication: an explorer and a seeded simulator over the machines of the cluster.

replica.py    a replica in memory, driven by the machines of `millstream.cluster`
store.py      a metadata store in memory, with leases and compare and set
explorer.py   every order of events, within bounds
simulator.py  one seed: clocks, network, disks, faults, clients
violation.py  a promise that was broken
"""
