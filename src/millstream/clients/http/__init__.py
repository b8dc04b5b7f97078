"""The client of the HTTP door: what decides is pure, and two shells do, one of them for asyncio."""
