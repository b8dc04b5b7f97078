"""Control plane of a cluster: registration of nodes, their view of the cluster, the controller."""
