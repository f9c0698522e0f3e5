"""Argument layout without a GPU; launches, streams, graphs and failures with one."""

import ctypes
import struct
import threading
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera.kernels.cuda import device, driver, launch
from tessera.kernels.cuda.errors import CaptureCompileError, LaunchError
from tessera.kernels.cuda.launch import Kernel, kernel, prepare

GPU = torch.cuda.is_available()
gpu = pytest.mark.skipif(not GPU, reason="needs a CUDA device")
C_TYPES = {
    "P": ctypes.c_void_p,
    "i": ctypes.c_int32,
    "I": ctypes.c_uint32,
    "q": ctypes.c_int64,
    "f": ctypes.c_float,
}


def arguments() -> Kernel:
    return kernel("probe/check_scalar.cuh", "tessera::check::arguments", signature="PiqIf")


@given(st.text(alphabet="PiIqf", max_size=12))
def test_arguments_lie_as_in_a_c_struct(signature: str) -> None:
    fields = [(f"a{k}", C_TYPES[code]) for k, code in enumerate(signature)]
    layout = type("Layout", (ctypes.Structure,), {"_fields_": fields})
    fn = kernel("x.cuh", "f", signature=signature)
    assert fn._offsets == [getattr(layout, name).offset for name, _ in fields]
    base = ctypes.addressof(fn._args)
    assert [fn._params[k] - base for k in range(len(fields))] == fn._offsets


def test_same_name_same_kernel() -> None:
    assert arguments() is arguments()
    assert "tessera::check::arguments" in repr(arguments())


def test_unknown_code_is_refused() -> None:
    with pytest.raises(ValueError, match=r"signature 'Pd' has \{'d'\}"):
        kernel("x.cuh", "f", signature="Pd")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((1, 2), r"takes 5 arguments \(PiqIf\), got 2"),
        ((1, 2.5, 3, 4, 5.0), "argument 1 must be a int32, got float 2.5"),
        ((1, 2**31, 3, 4, 5.0), "argument 1 must be a int32, got int 2147483648"),
        ((1, 2, 3, -4, 5.0), "argument 3 must be a uint32, got int -4"),
        ((1, 2, 3, 4, "x"), "argument 4 must be a float32"),
        ((None, 2, 3, 4, 5.0), "argument 0 must be a pointer"),
        (
            (torch.zeros(4), 2, 3, 4, 5.0),
            r"argument 0 must be a pointer, got Tensor \(the tensor is on cpu\)",
        ),
    ],
)
def test_wrong_arguments_are_named(args: tuple[object, ...], message: str) -> None:
    fn = arguments()
    with pytest.raises(TypeError, match=f"tessera::check::arguments.* {message}"):
        fn._examine(args)
    if GPU:
        for _ in range(2):  # also once the shape of launch is known
            with pytest.raises(TypeError, match=message):
                fn(1, 1, *args)


def test_launch_configuration_has_the_drivers_layout() -> None:
    config = launch._Config(7, (32, 2, 1), 4096, True, (2, 1, 4), 0x1234)
    assert launch._CONFIG.size == 56  # sizeof(CUlaunchConfig)
    *sizes, smem, stream, address, count = launch._CONFIG.unpack(ctypes.string_at(config.address, 56))
    assert (sizes, smem, stream, count) == ([7, 1, 1, 32, 2, 1], 4096, 0x1234, 2)
    raw = ctypes.string_at(address, 72 * count)
    assert struct.unpack_from("@I4x3I", raw, 0) == (driver.LAUNCH_CLUSTER_DIMENSION, 2, 1, 4)
    assert struct.unpack_from("@I4xi", raw, 72) == (driver.LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION, 1)


@pytest.mark.parametrize(("sm", "attributes"), [(80, 0), (89, 0), (90, 1)])
def test_only_hopper_is_asked_for_dependent_launches(
    monkeypatch: pytest.MonkeyPatch, sm: int, attributes: int
) -> None:
    monkeypatch.setattr(device, "current", lambda: SimpleNamespace(sm=sm))
    config = Kernel(arguments().inst, "i", 0)._configure((1, 32, 0, True, None, 0), (5,))
    assert launch._CONFIG.unpack(ctypes.string_at(config.address, 56))[-1] == attributes


@pytest.mark.gpu
@gpu
def test_arguments_arrive() -> None:
    y = torch.zeros(4, dtype=torch.int64, device="cuda")
    arguments()(1, 1, y, -5, -(2**40), 2**32 - 1, 1.5)
    assert y.tolist() == [-5, -(2**40), 2**32 - 1, 0x3FC00000]
    arguments()((1, 1, 1), (1, 1, 1), y.data_ptr(), 6, 7, 8, 2)
    assert y.tolist() == [6, 7, 8, 0x40000000]


@pytest.mark.gpu
@gpu
def test_signature_is_compared_with_the_compiled_kernel() -> None:
    y = torch.zeros(4, dtype=torch.int64, device="cuda")
    fn = kernel("probe/check_scalar.cuh", "tessera::check::arguments", signature="PiqIq")
    with pytest.raises(TypeError, match="was named with signature 'PiqIq'"):
        fn(1, 1, y, 1, 2, 3, 4)


@pytest.mark.gpu
@gpu
def test_launch_failures_carry_name_and_dimensions() -> None:
    y = torch.zeros(4, dtype=torch.int64, device="cuda")
    with pytest.raises(LaunchError, match=r"check::arguments with grid \(1, 1, 1\), block \(2048, 1, 1\)"):
        arguments()(1, 2048, y, 1, 2, 3, 4.0)
    with pytest.raises(LaunchError, match=r"100000 bytes of shared memory \(limit 49152\)"):
        arguments()(1, 1, y, 1, 2, 3, 4.0, smem=100_000)
    too_much = kernel(
        "probe/check_scalar.cuh", "tessera::check::arguments", signature="PiqIf", max_smem=1 << 20
    )
    with pytest.raises(LaunchError, match="use fewer stages or a smaller tile"):
        too_much(1, 1, y, 1, 2, 3, 4.0)
    torch.cuda.synchronize()  # none of these broke the context


@pytest.mark.gpu
@gpu
def test_current_stream_is_used() -> None:
    y = torch.zeros(4, dtype=torch.int64, device="cuda")
    arguments()(1, 1, y, 0, 0, 0, 0.0)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        arguments()(1, 1, y, 9, 9, 9, 9.0)
    assert not stream.query(), "the launch must queue behind the sleep"
    stream.synchronize()
    assert y[:3].tolist() == [9, 9, 9]


@pytest.mark.gpu
@gpu
def test_graph_capture_and_replay() -> None:
    y = torch.zeros(4, dtype=torch.int64, device="cuda")
    prepare([arguments()])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        arguments()(1, 1, y, 3, 4, 5, 0.0, pdl=True)
    assert y.tolist() == [0, 0, 0, 0], "capturing must not run it"
    graph.replay()
    assert y.tolist() == [3, 4, 5, 0]


@pytest.mark.gpu
@gpu
def test_capture_forbids_compiling() -> None:
    x = torch.zeros(4, dtype=torch.int64, device="cuda")
    fresh = kernel(
        "probe/check_scalar.cuh", "tessera::check::arguments", signature="PiqIf", options=("-DUNLOADED",)
    )
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(1)
        with pytest.raises(CaptureCompileError, match="prepare"):
            fresh(1, 1, x, 1, 2, 3, 4.0)
    prepare([fresh, fresh])
    fresh(1, 1, x, 1, 2, 3, 4.0)
    assert x[:3].tolist() == [1, 2, 3]


@pytest.mark.gpu
@gpu
def test_launching_from_threads() -> None:
    y = torch.zeros(8, 4, dtype=torch.int64, device="cuda")
    prepare([arguments()])
    torch.cuda.synchronize()

    def work(row: int) -> None:
        for k in range(200):
            arguments()(1, 1, y[row].data_ptr(), row, k, row * k, 0.0)

    threads = [threading.Thread(target=work, args=(row,)) for row in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert y[:, :3].tolist() == [[row, 199, row * 199] for row in range(8)]


@pytest.mark.gpu
@gpu
def test_synchronous_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "SYNC_LAUNCH", True)
    y = torch.zeros(4, dtype=torch.int64, device="cuda")
    torch.cuda._sleep(20_000_000)
    arguments()(1, 1, y, 1, 2, 3, 4.0)
    assert torch.cuda.current_stream().query()


@pytest.mark.gpu
@gpu
def test_device_info_matches_torch() -> None:
    info, other = device.current(), torch.cuda.get_device_properties(0)
    assert (info.name, info.sms, info.memory_bytes) == (
        other.name,
        other.multi_processor_count,
        other.total_memory,
    )
    assert info.sm == other.major * 10 + other.minor
    assert info.l2_bytes == other.L2_cache_size
    assert info.smem_per_block == other.shared_memory_per_block_optin
    assert arguments().blocks_per_sm(1024) == other.max_threads_per_multi_processor // 1024
