"""Classic consumer groups (JoinGroup, SyncGroup)."""
