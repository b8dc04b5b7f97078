"""Metadata of a cluster in etcd, through the JSON gateway of etcd 3.4 and later.

etcd_metadata.py   `EtcdMetadata`: the interface, leases, the check against restored backups
change_feed.py     follows all changes of the cluster, and continues after every interruption
gateway.py         calls and streams over several endpoints: deadlines, repetition, tokens
endpoint.py        one member of etcd: its address and connections
messages.py        requests and responses as JSON
versions.py        the versions of etcd that are refused
"""
