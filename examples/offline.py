"""Several prompts at once, without a server.

python examples/offline.py model-qoq
"""

import sys

from tessera import LLM, SamplingParams

PROMPTS = ("The capital of France is", "Water boils at", "A haiku about the sea:\n")


def main(model: str) -> None:
    llm = LLM(model, max_model_len=256)
    sampling = SamplingParams(temperature=0, max_tokens=24)
    for output in llm.generate(PROMPTS, sampling):
        print(f"{output.prompt!r} -> {output.text!r} ({output.finish_reason})")

    # Sampled, but the same every time: a seed belongs to its request and ignores whatever else is running.
    warm = SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=24)
    [reply] = llm.chat([{"role": "user", "content": "Say hello."}], warm)
    print(reply.text)


if __name__ == "__main__":
    main(*sys.argv[1:])
