"""The OpenAI SDK by its base URL alone: `etude/auto` is the model that Etude chooses for each request.

OPENAI_BASE_URL=http://127.0.0.1:8765/v1 OPENAI_API_KEY=etude_… python chat.py "where is my parcel?"
"""

from __future__ import annotations

import sys

from openai import OpenAI


def main(question: str) -> None:
    client = OpenAI()  # OPENAI_BASE_URL and OPENAI_API_KEY name Etude's server and a key of it
    raw = client.chat.completions.with_raw_response.create(
        model="etude/auto", messages=[{"role": "user", "content": question}]
    )
    answer = raw.parse().choices[0].message.content
    print(f"{raw.headers['x-etude-model']}: {answer}")
    # Whether it was right, and what the user thinks of it, by the id of the decision: the choice learns from it.
    report = {"id": raw.headers["x-etude-decision"], "success": bool(answer), "thumbs": "up"}
    client.post("/feedback", body=report, cast_to=object)


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "where is my parcel?")
