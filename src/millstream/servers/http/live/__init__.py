"""Live delivery: pushes new records of topics to watchers.

partition ──► feed ──► subscription ─► subscriber ──► SSE or WebSocket
              reads,   progress of one                next event of
              encodes  watcher in one                 a connection
              once     partition
"""
