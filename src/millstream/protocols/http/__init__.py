"""The messages of the HTTP door, as values: what both of its ends share.

Each message is declared once. The door reads and writes them, the client writes and reads them, and
`/openapi.json` is made from them, so none of the three can say something else than the others.
"""
