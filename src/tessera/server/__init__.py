"""OpenAI-compatible HTTP server over an engine. Never imports torch."""
