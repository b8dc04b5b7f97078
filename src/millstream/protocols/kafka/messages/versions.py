"""ApiVersions, the first request of every client."""

from __future__ import annotations

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import ARRAY, BOOL, INT16, INT32, INT64, STRING

API_VERSIONS = Versions(first=0, last=4, flexible=3)


@message(API_VERSIONS)
class ApiVersionsRequest:
    """Ask for the supported versions; from version 3 on with the name of the client software."""

    client_software_name: str = wire(STRING, since=3, default="")
    client_software_version: str = wire(STRING, since=3, default="")


@struct
class ApiVersionsResponseApi:
    """One API with its versions."""

    api_key: int = wire(INT16)
    min_version: int = wire(INT16)
    max_version: int = wire(INT16)


@struct
class ApiVersionsResponseSupportedFeature:
    """A supported feature with its levels."""

    name: str = wire(STRING)
    min_version: int = wire(INT16)
    max_version: int = wire(INT16)


@struct
class ApiVersionsResponseFinalizedFeature:
    """A feature that is on, with its level."""

    name: str = wire(STRING)
    max_version_level: int = wire(INT16)
    min_version_level: int = wire(INT16)


@message(API_VERSIONS)
class ApiVersionsResponse:
    """The supported APIs and versions, and the features that are on."""

    error_code: int = wire(INT16, default=0)
    api_keys: tuple[ApiVersionsResponseApi, ...] = wire(ARRAY(ApiVersionsResponseApi), default=())
    throttle_time_ms: int = wire(INT32, since=1, default=0)
    supported_features: tuple[ApiVersionsResponseSupportedFeature, ...] = wire(
        ARRAY(ApiVersionsResponseSupportedFeature), since=3, default=(), tag=0
    )
    finalized_features_epoch: int = wire(INT64, since=3, default=-1, tag=1)
    finalized_features: tuple[ApiVersionsResponseFinalizedFeature, ...] = wire(
        ARRAY(ApiVersionsResponseFinalizedFeature), since=3, default=(), tag=2
    )
    zk_migration_ready: bool = wire(BOOL, since=3, default=False, tag=3)
