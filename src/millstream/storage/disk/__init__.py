"""The file system and the threads that wait for it."""
