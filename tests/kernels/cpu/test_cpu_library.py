"""Architecture choice, compiler choice, fallback without one, threads after a fork."""

import logging
import os
import stat
import subprocess
import sys

import pytest
import torch
from cpu_cases import ARCHITECTURES, bind, linear_case, recipe_of

from tessera.kernels import cpu, torch_ref
from tessera.kernels.cpu import features, library
from tessera.kernels.errors import NoKernelError
from tessera.kernels.jit.cache import ArtifactCache
from tessera.kernels.jit.cpu import build_shared, find_compiler
from tessera.kernels.jit.errors import CppCompileError, LibraryUnavailableError, NoCompilerError


def test_best_architecture_comes_first(tmp_path):
    assert features.available(frozenset()) == ["portable"]
    avx2 = frozenset({"avx2", "fma", "f16c"})
    assert features.available(avx2) == ["avx2", "portable"]
    everything = avx2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}
    assert features.available(everything) == ["avx512vnni", "avx512", "avx2", "portable"]
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2 fma f16c\n\nprocessor\t: 1\n")
    assert features.cpu_flags(cpuinfo) == {"fpu", "avx2", "fma", "f16c"}
    assert features.cpu_flags(tmp_path / "missing") == frozenset()


def test_environment_picks_a_lesser_architecture(monkeypatch):
    monkeypatch.setenv("TESSERA_CPU_ARCH", "portable")
    assert cpu.device().arch == "portable"
    monkeypatch.setenv("TESSERA_CPU_ARCH", "neon")
    with pytest.raises(NoKernelError, match=r"TESSERA_CPU_ARCH=neon: this machine runs .*portable"):
        cpu.device()


def test_every_flag_set_is_known_to_the_detection():
    assert set(library.FLAGS) == set(features.ARCHITECTURES)
    assert not any("native" in flag for flags in library.FLAGS.values() for flag in flags)


def test_compiler_can_be_named_and_hidden(monkeypatch, tmp_path):
    fake = tmp_path / "my-c++"
    fake.write_text("#!/bin/sh\necho 'my version 7' >&2\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(fake))
    found = find_compiler()
    assert (found.path, found.version) == (str(fake), "my version 7\n")
    monkeypatch.setenv("CXX", str(tmp_path / "absent"))
    with pytest.raises(NoCompilerError, match="absent"):
        find_compiler()
    monkeypatch.setenv("TESSERA_NO_COMPILER", "1")
    with pytest.raises(NoCompilerError, match="TESSERA_NO_COMPILER"):
        find_compiler()


def test_what_the_compiler_says_is_in_the_error(tmp_path):
    source = tmp_path / "broken.cpp"
    source.write_text("int f( { this is not C++ }\n")
    cache = ArtifactCache(tmp_path / "cache")
    with pytest.raises(CppCompileError, match=r"broken\.cpp.*\n.*error"):
        build_shared([source], (), find_compiler(), cache)
    assert not list((tmp_path / "cache").glob("*/kernels.so"))


def test_a_changed_header_is_a_new_artifact(tmp_path):
    source, header = tmp_path / "a.cpp", tmp_path / "a.h"
    source.write_text('#include "a.h"\nextern "C" int f() { return VALUE; }\n')
    header.write_text("#define VALUE 1\n")
    cache = ArtifactCache(tmp_path / "cache")
    compiler = find_compiler()
    first = build_shared([source], (), compiler, cache)
    assert build_shared([source], (), compiler, cache) == first
    header.write_text("#define VALUE 2\n")
    assert build_shared([source], (), compiler, cache) != first
    assert build_shared([source], ("-DX",), compiler, cache) != first


def test_without_a_compiler_torch_runs_and_one_line_says_so(monkeypatch, caplog):
    monkeypatch.setenv("TESSERA_NO_COMPILER", "1")
    library.load.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            problem, weight, bias, x = linear_case(ARCHITECTURES[0], recipe_of("w4a8-g64"), 32, 64, tokens=2)
            bound = bind(problem, weight, bias)
            bind(problem, weight, bias)
        assert bound.kernel_id == "torch_int_linear"
        assert torch.equal(bound(x), torch_ref.INT_LINEAR.bind(problem, weight, bias)(x))
        lines = [r.getMessage() for r in caplog.records if r.name == library.log.name]
        assert len(lines) == 1
        assert "slower" in lines[0] and "TESSERA_NO_COMPILER" in lines[0]
        with pytest.raises(LibraryUnavailableError, match="TESSERA_NO_COMPILER"):
            library.require(ARCHITECTURES[0])
    finally:
        library.load.cache_clear()


def test_thread_count_from_the_environment(monkeypatch):
    monkeypatch.setenv("TESSERA_THREADS", "3")
    assert library.default_threads() == 3
    monkeypatch.delenv("TESSERA_THREADS")
    assert library.default_threads() == len(os.sched_getaffinity(0))


CHILD = """
import os, sys
sys.path.insert(0, sys.argv[1])
from cpu_cases import ARCHITECTURES, bind, linear_case, recipe_of
problem, weight, bias, x = linear_case(ARCHITECTURES[0], recipe_of("w4a8-g64"), 960, 128, tokens=40)
bound = bind(problem, weight, bias)
before = bound(x).numpy().tobytes()
pid = os.fork()
if pid == 0:  # compared without torch, whose own threads do not survive either
    os._exit(0 if bound(x).numpy().tobytes() == before else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_kernels_run_in_a_forked_child():
    """Threads do not survive fork: the child has to start its own instead of waiting for them."""
    environment = os.environ | {"TESSERA_THREADS": "2"}
    command = [sys.executable, "-c", CHILD, os.path.dirname(__file__)]
    assert subprocess.run(command, env=environment, timeout=100, check=False).returncode == 0


def test_importing_compiles_nothing():
    code = (
        "import tessera.kernels.cpu as cpu, tessera.kernels.cpu.library as library; "
        "assert library.load.cache_info().misses == 0; assert cpu.device().kind == 'cpu'"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
