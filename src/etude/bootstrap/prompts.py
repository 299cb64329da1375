"""Wires a language model at an OpenAI-compatible URL to the mutations of prompts."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping

from etude.contracts.errors import ConfigError
from etude.orchestrator.workers.openai import OpenAIWorker
from etude.problems.prompt.mutations import Model

MAX_TOKENS = 8192
TIMEOUT_S = 120.0


def mutating_model(named: str, *, api_key_env: str | None = None, env: Mapping[str, str] | None = None) -> Model:
    """The model that `URL#MODEL` names; ConfigError where that is not one. Nothing is sent yet."""
    url, _, model = named.partition("#")
    if not url or not model or not model.isprintable():
        raise ConfigError(
            f"{named.partition('?')[0]!r} names no model: expected URL#MODEL, such as http://localhost:11434/v1#qwen3"
        )
    worker = OpenAIWorker(
        model,
        url=url,
        model=model,
        api_key=_api_key(api_key_env, os.environ if env is None else env),
        max_tokens=MAX_TOKENS,
    )

    def ask(prompt: str) -> str:
        async def once() -> str:
            try:
                reply = await worker.ask(prompt, timeout_s=TIMEOUT_S)
                return reply.output if isinstance(reply.output, str) else str(reply.output)
            finally:
                await worker.close()

        return asyncio.run(once())

    return Model(name=model, ask=ask)


def _api_key(name: str | None, env: Mapping[str, str]) -> str | None:
    if name is None:
        return None
    key = env.get(name)
    if not key:
        shown = f"the variable {name!r}" if re.fullmatch("[A-Z_][A-Z0-9_]{,63}", name) else "the variable named there"
        raise ConfigError(f"api_key_env: {shown} is not set: export it, or leave the option out")
    return key
