"""What is done for each request, in files named like its messages."""
