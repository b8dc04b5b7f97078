"""Tests of `deploy/`: files are read and compared with the code; no container engine runs."""
