"""Live delivery: what is new in topics, pushed to those who watch.

partition ──► feed ──► place ─► subscriber ──► SSE or WebSocket
              reads,   where one watcher       what a connection
              encodes  stands in one           is sent next
              once     partition
"""
