"""Keys of records: key table of compaction, key matcher of deletion, search for missing keys."""
