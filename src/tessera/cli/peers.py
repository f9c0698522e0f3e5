"""Other engines on the same cases, for `tessera bench throughput`. Each library is imported when used."""

import inspect
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tessera.engine.throughput import Case, Speed, median, prompts_of
from tessera.errors import TesseraError

Run = Callable[[Sequence[Sequence[int]], int], tuple[float, float]]
"""(prompts, new tokens) -> seconds of prefill and of decode."""


class PeerMissingError(TesseraError):
    """A peer's library is not installed. The message has the command."""


def measure_peer(run: Run, case: Case, vocab_size: int, repeats: int = 3) -> Speed:
    """As `throughput.measure` does with our engine: same prompts, one run that does not count, medians."""
    prompts = prompts_of(case, vocab_size)
    run(prompts, case.output)
    return median([_speed(case, *run(prompts, case.output)) for _ in range(repeats)])


def _speed(case: Case, prefill: float, decode: float) -> Speed:
    steps = case.output - 1
    if steps == 0:
        return Speed(case.batch * case.prompt / prefill, 0.0, 0.0)
    return Speed(case.batch * case.prompt / prefill, case.batch * steps / decode, 1e3 * decode / steps)


def llama_cpp(model: Path, context: int, threads: int, q4_kv: bool = False) -> Run:
    """llama.cpp on a GGUF file, one sequence at a time; sampling is left out, which favours it.

    `q4_kv` stores keys and values as q4_0, which needs its flash attention.
    """
    library = _load("llama_cpp", "llama-cpp-python")
    kv_type = library.GGML_TYPE_Q4_0 if q4_kv else library.GGML_TYPE_F16
    llama = library.Llama(
        str(model),
        n_ctx=context,
        n_threads=threads,
        n_threads_batch=threads,
        n_batch=512,
        flash_attn=q4_kv,
        type_k=kv_type,
        type_v=kv_type,
        verbose=False,
    )

    def run(prompts: Sequence[Sequence[int]], output: int) -> tuple[float, float]:
        prefill = decode = 0.0
        for prompt in prompts:
            llama.reset()
            start = time.perf_counter()
            llama.eval(list(prompt))
            prefilled = time.perf_counter()
            for token in [prompt[0]] * (output - 1):
                llama.eval([token])
            prefill += prefilled - start
            decode += time.perf_counter() - prefilled
        return prefill, decode

    return run


def transformers_float32(checkpoint: Any, threads: int) -> Run:
    """transformers' Llama in float32 with the tensors of a checkpoint, all prompts as one batch."""
    library = _load("transformers", "transformers")
    import torch

    torch.set_num_threads(threads)
    model = llama_of(checkpoint)
    # Newer versions call it cache, older ones past_key_values.
    takes_cache = "cache" in inspect.signature(model.forward).parameters
    argument = "cache" if takes_cache else "past_key_values"

    @torch.inference_mode()
    def run(prompts: Sequence[Sequence[int]], output: int) -> tuple[float, float]:
        cache = {argument: library.DynamicCache(config=model.config)}
        start = time.perf_counter()
        logits = model(torch.tensor(prompts), use_cache=True, logits_to_keep=1, **cache).logits
        prefilled = time.perf_counter()
        for _ in range(output - 1):
            token = logits[:, -1].argmax(-1, keepdim=True)
            logits = model(token, use_cache=True, **cache).logits
        return prefilled - start, time.perf_counter() - prefilled

    return run


def llama_of(checkpoint: Any) -> Any:
    """transformers' LlamaForCausalLM with a checkpoint's tensors in float32."""
    library = _load("transformers", "transformers")
    model = library.LlamaForCausalLM(library.LlamaConfig(**_llama_settings(checkpoint.config)))
    tensors = {name: checkpoint.tensor(name).float() for name in checkpoint.names()}
    model.load_state_dict(tensors, strict=False)  # a tied head is not among them
    return model.eval()


_LLAMA_FIELDS: Final = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "max_position": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "tied_embeddings": "tie_word_embeddings",
    "attention_bias": "attention_bias",
    "mlp_bias": "mlp_bias",
}
"""Our names of a model's settings and transformers'. Rotary scaling costs no time and is left out."""


def _llama_settings(config: Any) -> dict[str, Any]:
    return {theirs: getattr(config, ours) for ours, theirs in _LLAMA_FIELDS.items()}


def _load(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise PeerMissingError(f"this peer needs {package}: pip install {package}") from error
