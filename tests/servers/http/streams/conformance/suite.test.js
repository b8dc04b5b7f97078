// Runs the public suite against the node at STREAMS_URL.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

runConformanceTests({ baseUrl: process.env.STREAMS_URL })
