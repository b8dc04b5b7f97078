"""Maintenance that walks over much data, as Spark jobs: in parallel, and to be repeated safely."""
