"""Quantize a model from Python, then compare what it says with what the original says.

python examples/quantize_tiny.py model.gguf model-qoq qoq-g64
"""

import sys

from tessera import LLM, SamplingParams, quantize

PROMPT = "The three laws of motion are"


def main(model: str, output: str, recipe: str = "qoq-g64") -> None:
    report = quantize(model, output, recipe)
    print(report)
    greedy = SamplingParams(temperature=0, max_tokens=32)
    for source in (model, output):
        llm = LLM(source, max_model_len=256, max_num_seqs=1)
        [answer] = llm.generate(PROMPT, greedy)
        print(f"{source}: {llm.info.weight_bytes / 2**20:.1f} MiB of weights\n  {answer.text!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
