"""HTTP/1.1 as a client speaks it: connections and responses.

Used by the clients of a node and by the metadata store in etcd.
"""
