"""The log cleaner: compaction, reclaiming, merging."""
