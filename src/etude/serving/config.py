"""Settings of the HTTP server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le


@dataclass(frozen=True, kw_only=True)
class ServingConfig:
    """`etude serve`: where it listens, and its limits."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every network of this machine: put a proxy with TLS before it."""
    port: Annotated[int, Ge(0), Le(65535)] = 8765
    """Port to listen on; 0 is any free one."""
    decide_timeout_ms: Annotated[float, Gt(0)] = 1000.0
    """Milliseconds that a request waits for a policy; then it gets the fallback, marked as such."""
    open_hours: Annotated[float, Gt(0)] = 1.0
    """Hours that a decision waits for its outcome; then it is stored as a trajectory without one."""
    task_hours: Annotated[float, Gt(0)] = 24.0
    """Hours that the server waits for a task of `etude.task` with `ETUDE_URL`; then it stores what it knows of it."""
    max_body_bytes: Annotated[int, Ge(1024)] = 4 << 20
    """Maximum size of a request in bytes."""
    request_timeout_s: Annotated[float, Gt(0)] = 30.0
    """Seconds after which a request that is not a stream is answered with 503."""
    requests_per_s: Annotated[float, Gt(0)] = 2000.0
    """Requests per second of one API key, in each process; a key may have its own limit."""
    max_ratings_per_day: Annotated[int, Ge(1)] = 200
    """Ratings per day that one user of an API key may send: more are refused."""
    max_ratings_per_key: Annotated[int, Ge(1)] = 10_000
    """Ratings per day that one API key may send, of all its users together: who they are is what it says."""
    max_sessions: Annotated[int, Ge(1)] = 16
    """Policies that learn while their callers ask them, at a time in each process."""
    session_idle_hours: Annotated[float, Gt(0)] = 1.0
    """Hours after which a session that is not used makes room for another one; what it did not save is lost."""
    datasets: str | None = None
    """Folder for datasets that are created over HTTP, or a prefix below experience.blobs if that is set; null is
    `datasets` in experience.folder."""
    metrics_without_key: bool = False
    """Whether `GET /metrics` needs no API key: for a scraper on a network that no one else is on."""
    log_format: Literal["text", "json"] = "text"
    """`json` writes one object per line, one for each request too; `text` writes warnings and errors."""
    otel_endpoint: str = ""
    """Base URL of an OpenTelemetry collector, such as http://localhost:4318, that gets a span for each request; empty
    sends none. Needs the extra `otel`."""
    min_free_mb: Annotated[int, Ge(0)] = 200
    """Free space on the disk of experience.folder below which `/ready` says no, in MB."""
    drain_s: Annotated[float, Ge(0), Le(300)] = 0.0
    """Seconds for which a server that stops answers on and `/ready` says no, so that a load balancer sends
    requests elsewhere."""
