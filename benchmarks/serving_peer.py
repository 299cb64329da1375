"""The peer of `serving_decisions.py`: a server of the same policies, as a good user of FastAPI and torch writes it.

    uvicorn serving_peer:app           # with PEER_POLICY, PEER_KEY and PEER_DATABASE

The same policy network (allocation) by torch with one thread and in inference mode, or the same choice policy by its
NumPy code; a pydantic model of the request, a key that is checked, one row per decision in SQLite with
`synchronous = FULL` before the answer. It redacts nothing, checks no limits, and keeps no release: less than ours does.
Requests that wait for the disk share a sync, as ours do.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import random
import sqlite3
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel

import etude
from etude.contracts.decision import DecisionRequest

torch.set_num_threads(1)
POLICY: Any = etude.load(os.environ["PEER_POLICY"])
KEY_HASH = hashlib.sha256(os.environ["PEER_KEY"].encode()).hexdigest()
NETWORK: Any = getattr(POLICY, "_policy", None)


class Asked(BaseModel):
    problem: str
    context: Any = None
    options: list[Any] | None = None


class Given(BaseModel):
    id: str
    action: Any
    propensity: float


class Rows:
    """Decisions on disk; those that arrive while others are written share the next sync."""

    def __init__(self, path: str) -> None:
        self.db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = FULL")
        self.db.execute("CREATE TABLE IF NOT EXISTS decision (id TEXT PRIMARY KEY, body TEXT NOT NULL)")
        self.thread, self.waiting = ThreadPoolExecutor(1), list[tuple[tuple[str, str], asyncio.Future[None]]]()
        self.busy = False

    async def add(self, id: str, body: str) -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self.waiting.append(((id, body), done))
        if not self.busy:
            self.busy = True
            self.task = asyncio.ensure_future(self._write(loop))
        await done

    async def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        while self.waiting:
            group, self.waiting = self.waiting, []
            await loop.run_in_executor(self.thread, self._insert, [row for row, _ in group])
            for _, done in group:
                done.set_result(None)
        self.busy = False

    def _insert(self, rows: list[tuple[str, str]]) -> None:
        self.db.execute("BEGIN")
        self.db.executemany("INSERT INTO decision VALUES (?, ?)", rows)
        self.db.execute("COMMIT")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.rows = Rows(os.environ["PEER_DATABASE"])
    yield


app = FastAPI(lifespan=lifespan)


def checked(authorization: Annotated[str, Header()]) -> None:
    given = hashlib.sha256(authorization.removeprefix("Bearer ").encode()).hexdigest()
    if not hmac.compare_digest(given, KEY_HASH):
        raise HTTPException(401)


@app.post("/v1/decisions", dependencies=[Depends(checked)])
async def decide(asked: Asked) -> Given:
    if asked.options is None:
        action = by_torch(asked.context)
        propensity = 1.0
    else:
        made = POLICY.decide(
            DecisionRequest(
                context=asked.context, options=tuple(asked.options), seed=random.getrandbits(62), explain=False
            )
        )
        action, propensity = made.action, made.propensity
    id = uuid.uuid4().hex
    row = {"context": asked.context, "options": asked.options, "action": action, "propensity": propensity}
    await app.state.rows.add(id, json.dumps(row))
    return Given(id=id, action=action, propensity=propensity)


@torch.inference_mode()
def by_torch(context: list[float]) -> Any:
    """The network alone: what `LoadedPolicy` does around it is left out."""
    x = torch.tensor([context], dtype=torch.float32)
    raw = NETWORK.policy_head(NETWORK.actor(NETWORK.scale(x)))
    picked = NETWORK._pick(NETWORK._split(raw), True, None)
    return torch.stack([*picked.values()], -1)[0].clamp(0, 1).tolist()


Path(os.environ["PEER_DATABASE"]).parent.mkdir(parents=True, exist_ok=True)
