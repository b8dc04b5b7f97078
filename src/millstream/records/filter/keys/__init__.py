"""Keys of records: tables for compaction, matchers for deletion."""
