"""The HTTP server: appends in batches and one by one, and live delivery, beside their limits."""

from __future__ import annotations

from subjects.http.appends import APPENDS, SINGLE
from subjects.http.live import LIVE

EXPERIMENTS = (APPENDS, SINGLE, LIVE)
