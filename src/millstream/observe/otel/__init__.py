"""OpenTelemetry: spans and metrics of a node on their way to a collector. Needs the extra `otel`.

    event loop     span ended ──► bounded queue ──► thread of the SDK ──► collector, /v1/traces
                   metrics read ──► one slot ──► thread of ours ──► collector, /v1/metrics

The loop never waits for either: what finds no room is dropped and counted. Nothing in here is
imported unless a node is told to send something.
"""
