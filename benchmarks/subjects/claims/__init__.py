"""Figures that support decisions in the documentation and that no other subject measures."""

from __future__ import annotations

from subjects.claims.events import EVENTS
from subjects.claims.forks import FORKS
from subjects.claims.http_client import HTTP_CLIENT
from subjects.claims.scrape import SCRAPE
from subjects.claims.syncing import SYNCING

EXPERIMENTS = (HTTP_CLIENT, EVENTS, SYNCING, SCRAPE, FORKS)
