"""A checkpoint damaged since it was written is not served."""

import pytest

from tessera import LLM
from tessera.formats.errors import CorruptError
from tiny import write_hf_model, write_quantized


def test_one_flipped_bit_is_found(tmp_path):
    write_hf_model(tmp_path / "float")
    checkpoint = write_quantized(tmp_path / "out", tmp_path / "float", "w4a8kv4-g32-rtn")
    LLM(checkpoint, max_model_len=64, kv_tokens=128)
    shard = checkpoint / "model.safetensors"
    data = bytearray(shard.read_bytes())
    data[-100] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CorruptError, match="sha256"):
        LLM(checkpoint, max_model_len=64, kv_tokens=128)
