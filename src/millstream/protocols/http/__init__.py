"""The messages of the HTTP API as values, shared by server and client.

Each message is declared once. The server and the client encode and decode it, and `/openapi.json`
is generated from it, so the three cannot differ.
"""
