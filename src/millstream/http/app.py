"""The HTTP door: every route, in one table.

    GET    /health/startup              200 once the node has opened its data
    GET    /health/live                 200 as long as the event loop answers
    GET    /health/ready                200 while clients are served, with what is wrong where not
    GET    /metrics                     the numbers, as Prometheus reads them
    GET    /v1/topics/{topic}           a topic, and how far each of its partitions reaches
    DELETE /v1/topics/{topic}/records   records go: by key, by the start of a key, before an offset

A handler parses, makes its call to the broker, and answers. What goes wrong is raised, and becomes
an answer in `errors.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route

from millstream.broker.broker import Broker
from millstream.http.errors import EXCEPTION_HANDLERS
from millstream.http.health import Health, health_routes
from millstream.http.hosts import LocalNames
from millstream.http.topics import delete_records, describe_topic

ROUTES = (
    Route("/v1/topics/{topic}", describe_topic, methods=["GET"]),
    Route("/v1/topics/{topic}/records", delete_records, methods=["DELETE"]),
)
"""What needs a broker."""


def make_app(
    health: Callable[[], Health],
    scrape: Callable[[], Iterable[str]],
    broker: Broker | None = None,
    *,
    is_local: bool = False,
) -> Starlette:
    """Return the application; without a broker, it tells health and metrics only.

    `is_local` has it answer to names of this machine only.
    """
    routes: list[BaseRoute] = [*health_routes(health, scrape)]
    if broker is not None:
        routes += ROUTES
    app = Starlette(
        routes=routes,
        middleware=[Middleware(LocalNames)] if is_local else [],
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.state.broker = broker
    return app
