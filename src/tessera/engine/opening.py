"""A checkpoint that is about to be served."""

from pathlib import Path

from tessera.formats import Checkpoint, open_checkpoint


def open_verified(model: str | Path) -> Checkpoint:
    """Opens `model` and, where it is one of ours, compares the checksums of its files (about 1 GB/s).

    Codes and scales that were damaged on the way are numbers like any others: nothing later would notice.
    Raises what opening raises, and CorruptError.
    """
    checkpoint = open_checkpoint(str(model))
    if checkpoint.recipe is not None:
        checkpoint.verify()
    return checkpoint
