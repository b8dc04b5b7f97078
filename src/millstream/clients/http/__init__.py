"""HTTP client of a node, blocking and asyncio."""
