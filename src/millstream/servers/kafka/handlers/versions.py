"""ApiVersions: the supported APIs, versions and features."""

from __future__ import annotations

import re

from millstream.protocols.kafka.apis import APIS
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ApiVersionsResponseApi,
    ApiVersionsResponseFinalizedFeature,
    ApiVersionsResponseSupportedFeature,
)
from millstream.servers.kafka.request_context import RequestContext

SOFTWARE_SINCE = 3
"""The first version in which a client names its software."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")

FEATURES = {
    "metadata.version": (7, 27),  # Those of Kafka 3.3 and 4.1: clients only show them.
    "transaction.version": (0, 2),  # Every transaction has an epoch of its own (KIP-890).
    "group.version": (0, 1),  # Consumer groups that the server divides (KIP-848).
}
"""Features that clients rely on when they are announced: lowest level and present level."""

_APIS = tuple(
    ApiVersionsResponseApi(
        api_key=api.key, min_version=api.announced.first, max_version=api.announced.last
    )
    for api in APIS.values()
)


def api_versions(request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
    """Return the supported APIs with their versions, and the features that are on."""
    if context.version >= SOFTWARE_SINCE:
        names = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.fullmatch(name) for name in names):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(
        api_keys=_APIS,
        supported_features=tuple(
            ApiVersionsResponseSupportedFeature(name=name, min_version=least, max_version=level)
            for name, (least, level) in FEATURES.items()
        ),
        finalized_features_epoch=1,
        finalized_features=tuple(
            ApiVersionsResponseFinalizedFeature(
                name=name, max_version_level=level, min_version_level=level
            )
            for name, (_, level) in FEATURES.items()
        ),
    )


def unsupported_version() -> ApiVersionsResponse:
    """Return the supported versions to a client whose version of ApiVersions is too new."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_APIS)
