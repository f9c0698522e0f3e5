"""The few calls of the CUDA driver that loading and launching need, straight through ctypes.

The packaged bindings build Python objects for every argument of a launch; a launch here is one call on
buffers that were laid out beforehand.
"""

import ctypes
import os
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache

from tessera.kernels.cuda.errors import CudaUnavailableError, LaunchError

# CUdevice_attribute
ATTR_SMEM_PER_BLOCK = 97  # largest dynamic shared memory a block may opt in to, bytes
ATTR_SMS = 16
ATTR_CLOCK_KHZ = 13
ATTR_MEMORY_CLOCK_KHZ = 36
ATTR_MEMORY_BUS_BITS = 37
ATTR_L2_BYTES = 38
ATTR_SMEM_PER_SM = 81
ATTR_CC_MAJOR = 75
ATTR_CC_MINOR = 76
# CUfunction_attribute
FUNC_MAX_DYNAMIC_SMEM = 8
# CUlaunchAttributeID
LAUNCH_CLUSTER_DIMENSION = 4
LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION = 6
# CUtensorMap: its size, CU_TENSOR_MAP_DATA_TYPE_UINT16, _SWIZZLE_128B, _L2_PROMOTION_L2_256B
TENSOR_MAP_BYTES = 128
_UINT16, _SWIZZLE_128B, _PROMOTION_256B = 1, 3, 3


@cache
def lib() -> ctypes.CDLL:
    """libcuda, initialised. Raises CudaUnavailableError."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaUnavailableError(
            f"no CUDA driver here ({error}): install NVIDIA's driver, or run on the CPU"
        ) from error
    cuda.cuLaunchKernelEx.argtypes = [c_void_p, c_void_p, c_void_p, c_void_p]
    status = cuda.cuInit(0)
    if status:
        raise CudaUnavailableError(
            f"cuInit failed with {error_text(status, cuda)}: does nvidia-smi see a device? "
            f"(CUDA_VISIBLE_DEVICES is {os.environ.get('CUDA_VISIBLE_DEVICES')!r})"
        )
    return cuda


def error_text(status: int, cuda: ctypes.CDLL | None = None) -> str:
    """`CUDA_ERROR_NAME (number): description` of a CUresult."""
    cuda = cuda or lib()
    name, text = c_char_p(), c_char_p()
    cuda.cuGetErrorName(status, byref(name))
    cuda.cuGetErrorString(status, byref(text))
    return f"{(name.value or b'unknown').decode()} ({status}): {(text.value or b'').decode()}"


def check(status: int, what: str) -> None:
    """Raises LaunchError for a CUresult that is not success; `what` says what was being done."""
    if status:
        raise LaunchError(f"{what}: {error_text(status)}")


def driver_version() -> tuple[int, int]:
    """(major, minor) of the newest CUDA that the driver supports."""
    version = c_int()
    check(lib().cuDriverGetVersion(byref(version)), "reading the driver's version")
    return version.value // 1000, version.value % 1000 // 10


def device_attribute(attribute: int, device: int) -> int:
    value = c_int()
    check(lib().cuDeviceGetAttribute(byref(value), attribute, device), f"reading attribute {attribute}")
    return value.value


def device_name_and_memory(device: int) -> tuple[str, int]:
    """Name and total memory in bytes."""
    name, total = ctypes.create_string_buffer(128), c_size_t()
    check(lib().cuDeviceGetName(name, len(name), device), f"reading the name of device {device}")
    check(lib().cuDeviceTotalMem_v2(byref(total), device), f"reading the memory of device {device}")
    return name.value.decode(), total.value


def ensure_context(device: int) -> None:
    """Makes the primary context of `device` current in this thread if the thread has none yet.

    A thread that has not called the CUDA runtime has no context, although torch initialised the process.
    """
    current, primary = c_void_p(), c_void_p()
    check(lib().cuCtxGetCurrent(byref(current)), "reading the current context")
    if current.value is None:
        check(
            lib().cuDevicePrimaryCtxRetain(byref(primary), device), f"taking the context of device {device}"
        )
        check(lib().cuCtxSetCurrent(primary), "making the context current")


def load_function(cubin: bytes, name: str, what: str) -> int:
    """Handle of a kernel loaded into the current context; the module stays for the life of the process."""
    module, function = c_void_p(), c_void_p()
    check(lib().cuModuleLoadData(byref(module), cubin), f"loading {what}")
    check(lib().cuModuleGetFunction(byref(function), module, name.encode()), f"finding {what} ({name})")
    return function.value or 0


def parameter_layout(function: int) -> list[tuple[int, int]] | None:
    """(offset, size) in bytes of each parameter of a loaded kernel; None where the driver cannot tell."""
    if not hasattr(lib(), "cuFuncGetParamInfo"):
        return None
    layout: list[tuple[int, int]] = []
    offset, size = c_size_t(), c_size_t()
    while (
        lib().cuFuncGetParamInfo(c_void_p(function), c_size_t(len(layout)), byref(offset), byref(size)) == 0
    ):
        layout.append((offset.value, size.value))
    return layout


def allow_dynamic_smem(function: int, size: int, what: str) -> None:
    """Raises the limit of dynamic shared memory of a kernel above the default of 48 KB."""
    status = lib().cuFuncSetAttribute(c_void_p(function), FUNC_MAX_DYNAMIC_SMEM, c_int(size))
    check(status, f"allowing {size} bytes of dynamic shared memory for {what}")


def tensor_map_16bit(address: int, rows: int, columns: int, box_rows: int) -> bytes:
    """CUtensorMap of row-major 16-bit [rows, columns], read in boxes of 64 columns, swizzled by 128 bytes.

    What lies outside is read as zeros. `address` and the bytes of a row are multiples of 16, `box_rows` is
    at most 256. Raises LaunchError.
    """
    memory = ctypes.create_string_buffer(TENSOR_MAP_BYTES + 64)
    start = -ctypes.addressof(memory) % 64
    status = lib().cuTensorMapEncodeTiled(
        c_void_p(ctypes.addressof(memory) + start),
        c_int(_UINT16),
        c_int(2),
        c_void_p(address),
        (c_uint64 * 2)(columns, rows),
        (c_uint64 * 1)(2 * columns),
        (c_uint32 * 2)(64, box_rows),
        (c_uint32 * 2)(1, 1),
        c_int(0),  # not interleaved
        c_int(_SWIZZLE_128B),
        c_int(_PROMOTION_256B),
        c_int(0),  # zeros outside
    )
    check(status, f"describing [{rows}, {columns}] of 16 bits at {address:#x} in boxes of {box_rows} x 64")
    return memory.raw[start : start + TENSOR_MAP_BYTES]


def synchronize(stream: int) -> int:
    """CUresult of waiting for a stream."""
    return int(lib().cuStreamSynchronize(c_void_p(stream)))


def occupancy(function: int, threads: int, smem: int) -> int:
    """Blocks of `threads` threads with `smem` bytes of dynamic shared memory that fit on one SM."""
    blocks = c_int()
    status = lib().cuOccupancyMaxActiveBlocksPerMultiprocessor(
        byref(blocks), c_void_p(function), c_int(threads), c_size_t(smem)
    )
    check(status, "computing occupancy")
    return blocks.value
