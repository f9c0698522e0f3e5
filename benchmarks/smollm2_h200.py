"""Claim: SmolLM2-135M on the GPU, through the path that serves, says what it says in float32 on the CPU.

    python benchmarks/smollm2_h200.py MODEL.gguf --text wiki.test.raw --cpu-reference REFERENCE.json
    python benchmarks/smollm2_h200.py MODEL.gguf --text wiki.test.raw --reference REFERENCE.json

The first line needs no GPU: perplexity of 13 windows in plain float32 torch, 64 greedy tokens for each of 20
prompts, and by how much the best logit led at each of them. The second, on a GPU, compares the engine's in
16 bits: the perplexity must agree within 0.3 %, and a text may only leave the reference's where two logits
were nearly equal. It exits with 1 otherwise. The reference is results/smollm2_cpu_reference.json.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from math import exp
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from tessera.cli import results
from tessera.engine.llm import LLM
from tessera.engine.sampling_params import SamplingParams
from tessera.evaluation.windows import PromptLogits, cut_windows, dense_logits, score_window
from tessera.formats import open_checkpoint
from tessera.layers.dense import dense_metadata
from tessera.models.loader import build_model
from tessera.models.types import Model

Row = dict[str, Any]
RESULTS: Final = Path(__file__).parent / "results"
PACKAGES: Final = ("tessera-llm", "torch")
WINDOW: Final = 2048
WINDOWS: Final = 13
NEW_TOKENS: Final = 64
PPL_TOLERANCE: Final = 0.003
NEAR_TIE: Final = {"f16": 0.05, "bf16": 0.4}
"""Lead of the best logit, in the reference, that the roundings of 16-bit hidden states may turn around: the
most by which they moved a lead in plain torch (0.047 and 0.39 over 384 tokens of these texts).
"""

PROMPTS: Final = (
    "The capital of France is", "Water boils at", "Once upon a time there was a small fox who",
    "To bake bread you need flour,", "The three primary colours are", "In 1969, astronauts landed on",
    "def fibonacci(n):\n", "The opposite of hot is", "A good way to learn a language is to",
    "Photosynthesis is the process by which", "My favourite season is autumn because", "The Pacific Ocean is",
    "Dear Sir or Madam,\n", "The main difference between a cat and a dog is", "import numpy as np\n\n",
    "Shakespeare wrote", "If it rains tomorrow, we will", "The human heart has",
    "Question: What is 7 times 8?\n", "The train to London leaves at",
)  # fmt: skip


def perplexity_rows(logits: PromptLogits, windows: Sequence[Sequence[int]]) -> Iterator[Row]:
    """One row a window, nothing before it: mean negative log-likelihood of tokens 2 to the last."""
    for index, token_ids in enumerate(windows):
        score = score_window(token_ids, logits, None)
        nll = score.nll / score.tokens
        yield {"op": "perplexity", "window": index, "tokens": score.tokens, "nll": nll, "ppl": exp(nll)}


def greedy_rows(llm: LLM) -> list[Row]:
    """One row a prompt: its tokens and the new ones, end of sequence ignored."""
    sampling = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    return [
        {"op": "greedy", "prompt": prompt, "prompt_ids": list(output.prompt_token_ids),
         "token_ids": list(output.token_ids), "text": output.text}
        for prompt, output in zip(PROMPTS, llm.generate(list(PROMPTS), sampling), strict=True)
    ]  # fmt: skip


def leads(model: Model, row: Row) -> list[float]:
    """By how much the best logit leads the second at each new token, in the dense float32 reference.

    Exits where the token is not the reference's first: then what generated it was no float32 engine.
    """
    ids = torch.tensor([*row["prompt_ids"], *row["token_ids"]])
    hidden = model.forward(ids, dense_metadata([len(ids)]))
    best = model.logits(hidden[len(row["prompt_ids"]) - 1 : -1]).topk(2)
    if best.indices[:, 0].tolist() != row["token_ids"]:
        sys.exit(f"{row['prompt']!r}: the CPU engine and the dense reference differ; run tests/engine first")
    return [round(lead, 4) for lead in (best.values[:, 0] - best.values[:, 1]).tolist()]


def cpu_reference(model: Path, windows: Sequence[Sequence[int]]) -> list[Row]:
    dense = build_model(open_checkpoint(model), paged=False)
    rows = []
    for row in perplexity_rows(dense_logits(dense), windows):
        print(row, flush=True)
        rows.append(row)
    llm = LLM(model, max_model_len=256, max_num_seqs=len(PROMPTS), kv_tokens=256 * len(PROMPTS))
    greedy = greedy_rows(llm)
    return rows + [row | {"leads": leads(dense, row)} for row in greedy]


def compare(model: Path, dtype: str, windows: Sequence[Sequence[int]], reference: list[Row]) -> list[Row]:
    """Rows of the engine on the GPU beside the reference's."""
    llm = LLM(
        model, device="cuda", dtype=dtype, max_model_len=WINDOW, max_num_seqs=len(PROMPTS),
        max_num_batched_tokens=1024, kv_tokens=WINDOW * len(PROMPTS), seed=0,
    )  # fmt: skip

    def logits(token_ids: Sequence[int]) -> Iterator[Tensor]:
        return (piece.cpu() for piece in llm.prompt_logits(token_ids))

    common = {"system": "tessera", "dtype": dtype, "kernels": " ".join(llm.info.kernel_ids)}
    ours = list(perplexity_rows(logits, windows))
    theirs = [row for row in reference if row["op"] == "perplexity"]
    greedy = [row for row in reference if row["op"] == "greedy"]
    texts = [compare_text(*pair, NEAR_TIE[dtype]) for pair in zip(greedy_rows(llm), greedy, strict=True)]
    return [common | compare_perplexity(ours, theirs), *(common | row for row in texts)]


def compare_perplexity(ours: Sequence[Row], theirs: Sequence[Row]) -> Row:
    ppl, reference = (exp(sum(row["nll"] for row in rows) / len(rows)) for rows in (ours, theirs))
    worst = max(abs(a["ppl"] / b["ppl"] - 1) for a, b in zip(ours, theirs, strict=True))
    return {
        "op": "perplexity", "windows": len(ours), "window": WINDOW, "ppl": ppl, "ppl_reference": reference,
        "relative_difference": ppl / reference - 1, "worst_window_difference": worst,
        "within_bound": abs(ppl / reference - 1) <= PPL_TOLERANCE,
    }  # fmt: skip


def compare_text(ours: Row, theirs: Row, near_tie: float) -> Row:
    """Equal, or where the first token differs and the lead there; all later ones follow from it."""
    assert ours["prompt_ids"] == theirs["prompt_ids"], "the reference was made with another tokenizer"
    pairs = zip(ours["token_ids"], theirs["token_ids"], strict=True)
    first = next((index for index, (a, b) in enumerate(pairs) if a != b), None)
    lead = None if first is None else theirs["leads"][first]
    return {
        "op": "greedy", "prompt": ours["prompt"], "tokens": len(ours["token_ids"]), "equal": first is None,
        "first_difference": first, "reference_lead": lead, "within_bound": lead is None or lead <= near_tie,
    }  # fmt: skip


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def load_reference(path: Path, sources: Row) -> list[Row]:
    """Rows of a reference for the same model and text; exits if it was made for others."""
    document = json.loads(path.read_text())
    if wrong := [name for name, value in sources.items() if document[name] != value]:
        sys.exit(f"{path} was made from another {' and '.join(wrong)}: make it anew with --cpu-reference")
    return document["rows"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "model", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf, as `make demo` downloads it"
    )
    parser.add_argument("--text", type=Path, required=True, help="WikiText-2 test, or any long text")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--cpu-reference", type=Path, metavar="OUT", help="make the reference, on the CPU")
    what.add_argument("--reference", type=Path, help="compare the GPU with this reference")
    parser.add_argument("--dtype", choices=("f16", "bf16"), default="f16")
    parser.add_argument("--out", type=Path, default=RESULTS / "smollm2_h200.json")
    arguments = parser.parse_args()
    sources = {"model_sha256": sha256(arguments.model), "text_sha256": sha256(arguments.text)}
    text = arguments.text.read_bytes().decode()
    windows = cut_windows(open_checkpoint(arguments.model).tokenizer().encode(text), WINDOW, WINDOWS)
    if arguments.cpu_reference:
        rows = cpu_reference(arguments.model, windows)
        results.write_json(arguments.cpu_reference, results.document(rows, PACKAGES) | sources)
        return
    rows = compare(arguments.model, arguments.dtype, windows, load_reference(arguments.reference, sources))
    machine = {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    results.write_json(arguments.out, results.document(rows, PACKAGES) | sources | machine)
    for row in rows:
        print({key: value for key, value in row.items() if key != "kernels"})
    equal = sum(row["op"] == "greedy" and row["equal"] for row in rows)
    print(f"{equal} of {len(PROMPTS)} texts equal; kernels: {rows[0]['kernels']}")
    if not all(row["within_bound"] for row in rows):
        sys.exit("beyond the bounds: see the rows above")


if __name__ == "__main__":
    main()
