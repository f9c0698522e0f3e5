"""Tiny random Llama models for tests: configuration, tensors, a Hugging Face directory, a tokenizer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from tessera.formats import CheckpointWriter, open_checkpoint
from tessera.kernels.types import AttentionMetadata
from tessera.numerics import QTensor, plain, quantize
from tessera.spec import A8, A32, S8N, Chain, ModelConfig, Pattern, Recipe, RopeConfig, symmetric

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("t h", "th e", "Ġ t", "Ġ a", "i n", "e r", "o n", "Ġ the", "l l", "a n")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCAB_SIZE = len(SPECIAL_TOKENS) + 256 + len(MERGES)
LLAMA3_ROPE = RopeConfig(500000.0, "llama3", 8.0, 1.0, 4.0, original_max_position=64)

TINY = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=VOCAB_SIZE,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    max_position=512,
    tied_embeddings=True,
    bos_id=1,
    eos_ids=(2,),
)
"""Sizes that groups of 32 and 64 divide; head_dim is not hidden_size / num_heads, as in some real models."""


def tiny_config(**changes: Any) -> ModelConfig:
    """`TINY` with some fields changed."""
    return replace(TINY, **changes)


def random_tensors(
    config: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Every tensor of `config` by canonical name. Weights keep activations near 1, so that attention is
    neither uniform nor saturated and logits differ between tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in config.tensor_shapes().items():
        values = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            values = 1 + 0.1 * values
        elif name.endswith(".bias"):
            values = 0.1 * values
        elif name != "model.embed_tokens.weight":
            values = values / shape[-1] ** 0.5
        tensors[name] = values.to(dtype)
    return tensors


@dataclass(frozen=True)
class TinyCheckpoint:
    """Tensors in memory with the formats of a recipe, as a checkpoint offers them (no tokenizer)."""

    config: ModelConfig
    qtensors: dict[str, QTensor]
    activations: dict[str, Chain]
    kv_chain: Chain = A32

    def names(self) -> list[str]:
        return list(self.qtensors)

    def qtensor(self, name: str) -> QTensor:
        return self.qtensors[name]

    def tensor(self, name: str) -> Tensor:
        return self.qtensors[name].dequantize()

    def activation(self, name: str) -> Chain:
        return self.activations.get(name, A32)


def quantized(config: ModelConfig, tensors: dict[str, Tensor], recipe: Recipe) -> TinyCheckpoint:
    """Every linear layer of a block rounded to nearest as `recipe` says; embedding and head to 8 bits with
    int8 activations where the recipe has them, else left alone.
    """
    chains = {f"{name}.weight": recipe.weight_chain() for name in config.linears()}
    activations = dict.fromkeys(config.linears(), recipe.activation_chain())
    if recipe.activation_bits == 8:
        by_row = symmetric(S8N, Pattern.channel())
        chains |= {"model.embed_tokens.weight": by_row, "lm_head.weight": by_row}
        activations["lm_head"] = A8
    qtensors = {
        name: quantize(values, chains[name]) if name in chains else plain(values)
        for name, values in tensors.items()
    }
    return TinyCheckpoint(config, qtensors, activations, recipe.kv_chain())


def paged_metadata(
    computed: Sequence[int], lengths: Sequence[int], tables: Tensor, page_size: int = 64
) -> AttentionMetadata:
    """One step: sequence s has `computed[s]` tokens in the cache and `lengths[s]` new ones.

    `tables` int32 [S, P] are its pages.
    """
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    places = [torch.arange(c, c + n) for c, n in zip(computed, lengths, strict=True)]
    slots = [tables[s].long()[p // page_size] * page_size + p % page_size for s, p in enumerate(places)]
    context = [c + n for c, n in zip(computed, lengths, strict=True)]
    return AttentionMetadata(
        positions=torch.cat(places).int(),
        slot_mapping=torch.cat(slots),
        cu_seqlens=starts,
        context_lens=torch.tensor(context, dtype=torch.int32),
        block_tables=tables,
        max_query_len=max(lengths),
        max_context_len=max(context),
    )


def write_quantized(directory: Path, source: Path, recipe: str) -> Path:
    """The model in `source` rounded to nearest by `recipe`, as a checkpoint. Returns `directory`."""
    opened = open_checkpoint(source)
    tensors = {name: opened.tensor(name).float() for name in opened.names()}
    result = quantized(opened.config, tensors, Recipe.parse(recipe))
    with CheckpointWriter(directory, opened.config, Recipe.parse(recipe), files=opened.files()) as writer:
        for name in result.names():
            writer.add(name, result.qtensor(name))
        writer.finish()
    return directory


def hf_config(config: ModelConfig) -> dict[str, Any]:
    """The contents of `config.json`."""
    rope: dict[str, Any] = {"rope_theta": config.rope.theta, "rope_type": config.rope.kind}
    if config.rope.kind != "default":
        rope["factor"] = config.rope.factor
    if config.rope.kind == "llama3":
        rope["low_freq_factor"] = config.rope.low_freq_factor
        rope["high_freq_factor"] = config.rope.high_freq_factor
        rope["original_max_position_embeddings"] = config.rope.original_max_position
    return {
        "architectures": [config.architecture],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "rope_parameters": rope,
        "bos_token_id": config.bos_id,
        "eos_token_id": list(config.eos_ids),
    }


def transformers_model(config: ModelConfig, tensors: dict[str, Tensor]) -> Any:
    """transformers' own model with these tensors, in their type, for evaluation."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**hf_config(config), attn_implementation="sdpa"))
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert missing == (["lm_head.weight"] if config.tied_embeddings else [])
    return model.eval()


def byte_tokenizer() -> Tokenizer:
    """Byte-level BPE over all 256 bytes with three special tokens and a few merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [tuple(merge.split(" ")) for merge in MERGES]
    tokens = [*SPECIAL_TOKENS, *alphabet, *("".join(pair) for pair in pairs)]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    return tokenizer


def write_tokenizer(directory: Path) -> None:
    """tokenizer.json and tokenizer_config.json with a chat template."""
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def write_hf_model(
    directory: Path, config: ModelConfig = TINY, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Path:
    """A complete Hugging Face directory of a random model. Returns `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(hf_config(config), indent=1))
    generation = {"bos_token_id": config.bos_id, "eos_token_id": list(config.eos_ids)}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    save_file(random_tensors(config, seed, dtype), directory / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(directory)
    return directory
