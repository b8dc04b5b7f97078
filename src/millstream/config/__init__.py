"""Configuration of a node: a file, variables and flags in, checked values out.

    defaults ──► millstream.toml ──► MILLSTREAM_* ──► flags ──► NodeConfig, and where each came from

What stands further to the right wins. `keys` declares what can be set and by which names; nothing
else in here knows a setting.
"""
