"""OpenTelemetry: sends spans and metrics of a node to a collector. Needs the extra `otel`.

    event loop     span ended ──► bounded queue ──► thread of the SDK ──► collector, /v1/traces
                   metrics read ──► one slot ──► thread of ours ──► collector, /v1/metrics

The loop never waits for either: what does not fit is dropped and counted. Nothing in here is
imported unless telemetry is turned on.
"""
