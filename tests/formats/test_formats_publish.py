"""kill -9 during a replacement, file systems without exchange, remains of killed writers."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from tessera.formats import CheckpointWriter, open_checkpoint, publish
from tessera.formats.publish import Staging, previous_path, staging_prefix
from tessera.numerics import plain
from tiny import TINY, random_tensors

NORM = "model.norm.weight"

# The n-th change of the file system kills its process before it happens; n grows until none is left to kill.
KILLER = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    import test_formats_publish as t
    from tessera.formats import publish

    def changes(event, args):
        if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree", "os.chmod"):
            return True
        if event == "open":
            return isinstance(args[2], int) and bool(args[2] & (os.O_WRONLY | os.O_RDWR))
        return event == "test.exchange"

    def child(n, out):
        left = n
        def hook(event, args):
            nonlocal left
            if changes(event, args):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        t.write_plain(out, 2)
        os._exit(0)

    real = publish.exchange
    def audited(first, second):
        sys.audit("test.exchange")
        return real(first, second) if sys.argv[2] == "exchange" else False
    publish.exchange = audited

    n = 0
    while True:
        out = Path(sys.argv[1]) / str(n) / "out"
        t.write_plain(out, 1)
        pid = os.fork()
        if pid == 0:
            child(n, out)
        if os.waitpid(pid, 0)[1] == 0:
            break
        n += 1
    print(n)
    """
)


def write_plain(out: Path, seed: int) -> None:
    with CheckpointWriter(out, TINY, None, files={"tokenizer.json": b"{}"}) as writer:
        for name, tensor in random_tensors(TINY, seed).items():
            writer.add(name, plain(tensor))
        writer.finish()


def norm_of(out: Path) -> torch.Tensor:
    checkpoint = open_checkpoint(out)
    checkpoint.verify()
    return checkpoint.tensor(NORM)


@pytest.mark.parametrize("way", ["exchange", "renames"])
def test_kill_at_any_point_leaves_old_or_new_whole(tmp_path: Path, way: str) -> None:
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), *filter(None, sys.path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", KILLER, str(tmp_path), way],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    kills = int(run.stdout)
    assert kills > 8
    old, new = (random_tensors(TINY, seed)[NORM] for seed in (1, 2))
    seen = []
    for n in range(kills):
        actual = norm_of(tmp_path / str(n) / "out")
        assert torch.equal(actual, old) or torch.equal(actual, new), n
        seen.append(torch.equal(actual, new))
    assert not seen[0]
    assert seen[-1]
    assert seen == sorted(seen)  # old up to one point, new from there on
    write_plain(tmp_path / "0" / "out", 3)  # the next writer removes what the killed one left
    assert [p.name for p in (tmp_path / "0").iterdir()] == ["out"]


def test_without_exchange_two_renames_replace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "exchange", lambda first, second: False)
    for seed in (1, 2):
        write_plain(tmp_path / "out", seed)
    assert torch.equal(norm_of(tmp_path / "out"), random_tensors(TINY, 2)[NORM])
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_checkpoint_left_between_two_renames_is_found(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_plain(out, 1)
    out.rename(previous_path(out))
    assert torch.equal(norm_of(out), random_tensors(TINY, 1)[NORM])


def test_exchange_swaps_and_reports_real_failures(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if publish.exchange(tmp_path / "a", tmp_path / "b"):
        assert (tmp_path / "a" / "b").exists()
        with pytest.raises(FileNotFoundError):
            publish.exchange(tmp_path / "a", tmp_path / "missing")


def test_a_living_writer_is_left_alone(tmp_path: Path) -> None:
    first = Staging(tmp_path / "out")
    second = Staging(tmp_path / "out")
    assert first.path.is_dir()
    second.discard()
    first.discard()
    assert list(tmp_path.iterdir()) == []


def test_remains_are_removed_by_name(tmp_path: Path) -> None:
    remains = tmp_path / f"{staging_prefix(tmp_path / 'out')}dead"
    remains.mkdir()
    (tmp_path / ".out2.writing-other").mkdir()
    Staging(tmp_path / "out").discard()
    assert [p.name for p in tmp_path.iterdir()] == [".out2.writing-other"]


def test_a_linked_output_stays_a_link(tmp_path: Path) -> None:
    write_plain(tmp_path / "real", 1)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_plain(tmp_path / "link", 2)
    assert (tmp_path / "link").is_symlink()
    assert torch.equal(norm_of(tmp_path / "real"), random_tensors(TINY, 2)[NORM])
