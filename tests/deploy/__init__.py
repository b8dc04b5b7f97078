"""What `deploy/` says is what a node does. No engine runs here: files are read and compared."""
