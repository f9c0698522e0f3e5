"""Hub ids against a hub on this machine: the routes `huggingface_hub` asks for, over real HTTP."""

import hashlib
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from gguf_tiny import write_gguf

from tessera.formats.hub import is_hub_id
from tiny import TINY, random_tensors, write_hf_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"

# The client reads HF_ENDPOINT when it is imported, so it runs in a process of its own.
CLIENT = textwrap.dedent(
    """
    import json, sys
    from tessera.formats import FormatError, open_checkpoint
    out = []
    for source in sys.argv[1:]:
        try:
            c = open_checkpoint(source)
            total = sum(float(c.tensor(n).double().sum()) for n in c.names())
            ids = c.tokenizer().encode("the cat")
            out.append({"kind": type(c).__name__, "total": total, "ids": ids, "path": str(c.path)})
        except FormatError as error:
            out.append({"error": type(error).__name__, "text": str(error)})
    print(json.dumps(out))
    """
)


class FakeHub(BaseHTTPRequestHandler):
    """Repository information, file listing and files of `root/<owner>/<name>`; `gated` ones answer 403."""

    root: Path
    requested: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0].strip("/")
        self.requested.append(path)
        match path.split("/"):
            case ["api", "models", "tiny", "gated", *_]:
                self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
            case ["api", "models", owner, name, "revision", revision] if self.has(owner, name):
                if revision not in ("main", COMMIT):
                    return self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
                siblings = [{"rfilename": p} for p in self.files(owner, name)]
                info = {"id": f"{owner}/{name}", "sha": COMMIT, "siblings": siblings, "private": False}
                self.answer(200, json.dumps(info).encode())
            case ["api", "models", owner, name, "tree", *_] if self.has(owner, name):
                listing = [
                    {"type": "file", "path": p, "size": len(raw), "oid": hashlib.sha1(raw).hexdigest()}
                    for p, raw in self.files(owner, name).items()
                ]
                self.answer(200, json.dumps(listing).encode())
            case [owner, name, "resolve", _, *rest] if "/".join(rest) in self.files(owner, name):
                raw = self.files(owner, name)["/".join(rest)]
                self.answer(200, raw, {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(raw).hexdigest()}"'})
            case _:
                self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def has(self, owner: str, name: str) -> bool:
        return (self.root / owner / name).is_dir()

    def files(self, owner: str, name: str) -> dict[str, bytes]:
        base = self.root / owner / name
        return {str(p.relative_to(base)): p.read_bytes() for p in base.rglob("*") if p.is_file()}

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """(address, paths requested so far) of a hub with a model, a GGUF repository and a gated one."""
    root = tmp_path_factory.mktemp("hub")
    model = write_hf_model(root / "tiny" / "llama")
    (model / "pytorch_model.bin").write_bytes(b"never asked for")
    (model / "original").mkdir()
    (model / "original" / "consolidated.safetensors").write_bytes(b"never asked for")
    (root / "tiny" / "blocks").mkdir()
    write_gguf(root / "tiny" / "blocks" / "a.gguf", TINY, random_tensors(TINY))
    requested: list[str] = []
    handler = type("Handler", (FakeHub,), {"root": root, "requested": requested})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", requested
    server.shutdown()
    thread.join()
    server.server_close()


def opened(endpoint: str, home: Path, *sources: str, **environment: str) -> list[dict[str, Any]]:
    """What a fresh process says about each source."""
    paths = os.pathsep.join(filter(None, sys.path))
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and k.lower() != "http_proxy"}
    run = subprocess.run(
        [sys.executable, "-c", CLIENT, *sources],
        env=clean
        | {"PYTHONPATH": paths, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "OMP_NUM_THREADS": "1"}
        | {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "no_proxy": "127.0.0.1"}
        | environment,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    result: list[dict[str, Any]] = json.loads(run.stdout.splitlines()[-1])
    return result


def test_hub_ids(hub: tuple[str, list[str]], tmp_path: Path) -> None:
    endpoint, requested = hub
    sources = ("tiny/llama", f"tiny/llama@{COMMIT}", "tiny/blocks/a.gguf", "tiny/absent", "tiny/gated",
               "tiny/llama@v9")  # fmt: skip
    model, pinned, blocks, absent, gated, revision = opened(endpoint, tmp_path, *sources)
    total = sum(float(t.double().sum()) for t in random_tensors(TINY).values())
    assert model["kind"] == pinned["kind"] == "HFCheckpoint"
    assert blocks["kind"] == "GGUFCheckpoint"
    assert [m["total"] for m in (model, pinned, blocks)] == pytest.approx([total] * 3)
    assert model["ids"] == blocks["ids"]
    assert absent["error"] == gated["error"] == revision["error"] == "HubError"
    assert "tiny/absent is neither a path on this machine nor a model on the hub" in absent["text"]
    assert "accept its terms" in gated["text"]
    assert "v9" in revision["text"]
    assert not [p for p in requested if p.endswith(("pytorch_model.bin", "consolidated.safetensors"))]

    nowhere = "http://127.0.0.1:9"  # the discard port: nothing listens
    again, missing = opened(nowhere, tmp_path, "tiny/llama", "tiny/other", HF_HUB_OFFLINE="1")
    assert again["total"] == model["total"]
    assert missing["error"] == "HubError"
    assert "cannot be reached" in missing["text"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("owner/name", True),
        ("owner/name@main", True),
        ("owner/name@refs/pr/3", True),
        ("owner/name/dir/file.gguf", True),
        ("owner/name/file.bin", False),
        ("name", False),
        ("./owner/name", False),
        ("/owner/name", False),
        ("~/name", False),
        ("owner/na me", False),
        ("owner/name\n", False),
    ],
)
def test_what_is_a_hub_id(source: str, expected: bool) -> None:
    assert is_hub_id(source) is expected
