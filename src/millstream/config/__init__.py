"""Configuration of a node, read from a file, environment variables and flags.

    defaults ──► millstream.toml ──► MILLSTREAM_* ──► flags ──► NodeConfig, with origins

A source further to the right wins. `keys` declares which settings there are and how they are named;
no other module in this package knows a setting.
"""
