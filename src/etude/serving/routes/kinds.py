"""Two kinds of routes, whose keys need the role `release`: those that read what the loop does, and those that steer
it."""

from __future__ import annotations

from functools import partial

from litestar import get, post

from etude.serving.access import needs
from etude.serving.errors import refusals
from etude.serving.keys import Role

READS = refusals(400, 401, 403, 404, 409, 429, 503)
CHANGES = refusals(400, 401, 403, 404, 409, 413, 429, 503)
GUARDS = (needs(Role.RELEASE),)

reads = partial(get, guards=GUARDS, responses=READS)
steers = partial(post, guards=GUARDS, responses=CHANGES, status_code=200)
begins = partial(post, guards=GUARDS, responses=CHANGES, status_code=202)
"""Steers, and the answer comes before it is done."""
