"""OpenTelemetry: sends spans and metrics of a node to a collector. Needs the extra `otel`.

    event loop     span ended ──► bounded queue ──► thread of the SDK ──► collector
                   metrics read ──► one slot ──► thread of ours ──► collector

The loop never waits for either: what does not fit is dropped and counted. Nothing in here is
imported unless telemetry is turned on.
"""
