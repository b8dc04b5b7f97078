"""Maintenance of large data as Spark jobs, which run in parallel and can be repeated safely."""
