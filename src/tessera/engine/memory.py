"""Memory that a KV cache can be planned from, and what a block of it takes."""

from pathlib import Path
from typing import Final

import psutil

from tessera.engine.block_pool import BLOCK_SIZE
from tessera.planner import ModelShape
from tessera.planner.memory import kv_bytes_per_token
from tessera.spec import Chain, ModelConfig

CGROUP: Final = Path("/sys/fs/cgroup")


def block_bytes(config: ModelConfig, kv: Chain) -> int:
    """One block of the cache over all layers, K and V stored by `kv`, as `tessera plan` counts it."""
    return BLOCK_SIZE * int(kv_bytes_per_token(ModelShape.from_config(config), kv).value)


def available_memory(cgroup: Path = CGROUP) -> int:
    """Bytes this process could still take: the machine's available memory, or less in a limited container.

    `cgroup` is the directory of the version 2 control group whose memory.max applies.
    """
    available = int(psutil.virtual_memory().available)
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        reclaimable = _statistic(cgroup / "memory.stat", "inactive_file")
    except (OSError, ValueError):  # no control group of version 2, or no permission to look
        return available
    if limit == "max":
        return available
    return max(0, min(available, int(limit) - used + reclaimable))


def _statistic(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
