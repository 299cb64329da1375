"""The OpenAI-compatible routes: calls of language models, of which `etude/auto` learns which one to take."""
