"""Cleaning of logs: compaction, reclaim of deleted records, and merging of small segments."""
