"""`millstream jobs`."""
