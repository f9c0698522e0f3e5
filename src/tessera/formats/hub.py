"""Hugging Face hub ids: `owner/name`, `owner/name@revision`, or `owner/name/file.gguf`."""

import re
from pathlib import Path
from typing import Final

from tessera.formats.errors import HubError
from tessera.formats.tokenizer import FILES

_ID: Final = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<file>[^@]+\.gguf))?(?:@(?P<revision>[\w./-]+))?", re.ASCII
)
_PATTERNS: Final = ["*.safetensors", "*.safetensors.index.json", "config.json", "report.json", *FILES]
_UNWANTED: Final = ["original/*", "consolidated*"]
"""Second copies of the weights in their authors' own layout."""


def is_hub_id(source: str) -> bool:
    return not source.startswith((".", "/", "~")) and _ID.fullmatch(source) is not None


def download(source: str) -> Path:
    """Fetch what is needed of a model into the hub's cache, unless it is there: its directory or file.

    `source` satisfies `is_hub_id`. HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE and HF_TOKEN work as everywhere.
    Raises HubError saying what to do.
    """
    from huggingface_hub import hf_hub_download, snapshot_download  # slow to import, and rarely needed
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    match = _ID.fullmatch(source)
    assert match is not None
    repo, file, revision = match["repo"], match["file"], match["revision"]
    try:
        if file:
            return Path(hf_hub_download(repo, file, revision=revision))
        return Path(
            snapshot_download(repo, revision=revision, allow_patterns=_PATTERNS, ignore_patterns=_UNWANTED)
        )
    except GatedRepoError as error:
        raise HubError(
            f"{repo} is gated: accept its terms on the hub, then log in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise HubError(
            f"{source} is neither a path on this machine nor a model on the hub (a private one needs "
            "`hf auth login`)"
        ) from error
    except LocalEntryNotFoundError as error:
        raise HubError(
            f"{source} is not a path on this machine, and the hub cannot be reached to download it ({error})"
        ) from error
    except Exception as error:  # the hub's client raises its own, its HTTP library's and the system's
        raise HubError(f"downloading {source} failed: {error}") from error
