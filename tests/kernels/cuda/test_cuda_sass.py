"""The machine-code reader on a listing and on what the compiler really emits."""

import pytest

from tessera.kernels.cuda import sass
from tessera.kernels.cuda.errors import SassToolError
from tessera.kernels.cuda.sass import Sass
from tessera.kernels.jit.nvrtc import Instantiation, compile_kernel

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")

LISTING = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDG.E R5, desc[UR4][R2.64] ;
.L_x_0:
        /*0020*/              @!P1 IMAD.HI.U32 R4, R3, 0x4, R4 ;
        /*0030*/                   IMAD R4, R3, R4, R4 ;
        /*0040*/               @P0 BRA `(.L_x_0) ;
        /*0050*/                   STL [R1], R4 ;
        /*0060*/              @UP0 BRA `(.L_x_1) ;
        /*0070*/                   EXIT ;
.L_x_2:
        /*0080*/                   BRA `(.L_x_2);
        /*0090*/                   NOP;
"""


def read(header: str, expression: str, arch: str = "sm_90a") -> Sass:
    return sass.read(compile_kernel(Instantiation(f"probe/{header}.cuh", expression, arch)).cubin)


def test_listing_with_nested_loops() -> None:
    code = sass.parse(LISTING)
    assert len(code.instructions) == 10
    assert code.instructions[2].opcode == "IMAD.HI.U32"
    assert (code.count("IMAD"), code.count("IMAD.HI"), code.count("BRA", "EXIT")) == (2, 1, 4)
    assert [len(loop.instructions) for loop in code.loops] == [3, 6]
    assert code.main_loop().count("IMAD") == 2
    assert code.main_loop().count("LDG") == 0, "only the innermost loop counts"
    assert code.uses_local_memory and not code.uses_wgmma
    assert code.histogram()["IMAD"] == 2
    with pytest.raises(ValueError, match="STL"):
        code.main_loop("STL")


@pytest.mark.parametrize(
    ("number", "opcode"), [(0, "LOP3"), (1, "SHF"), (2, "PRMT"), (3, "IMAD"), (6, "HFMA2")]
)
def test_rate_probes_contain_exactly_what_they_count(number: int, opcode: str) -> None:
    loop = read("rates", f"tessera::probe::rate<{number}, 8>").main_loop(opcode)
    assert loop.count(opcode) == 64
    assert len(loop.instructions) <= 64 + 6


@pytest.mark.parametrize("n", [64, 128, 256])
def test_dequantization_costs_five_instructions_for_eight_weights(n: int) -> None:
    code = read("int8_ceiling", f"tessera::probe::int8_ceiling<{n}, 2, 2>")
    loop = code.main_loop("IGMMA")
    assert code.uses_wgmma and not code.uses_local_memory
    assert loop.count("IGMMA") == 4
    assert loop.count("IMAD") == 16  # two for each of a thread's 8 words
    assert loop.count("LOP3") + loop.count("SHF") <= 24 + 4  # three a word, and unpacking the parameters
    assert loop.count("LDS") == 3


def test_streaming_probe_keeps_the_same_loop() -> None:
    config = "tessera::probe::StreamConfig<256, 2, 1, 5, tessera::probe::MultiplyAdd, 1, 0>"
    code = read("stream_gemm", f"tessera::probe::stream_gemm<{config}>")
    loop = code.main_loop("IGMMA")
    assert loop.count("IGMMA") == 4 and not code.uses_local_memory
    assert code.count("UBLKCP") >= 3 and code.count("USETMAXREG") == 2
    assert loop.count("LOP3", "SHF", "IMAD", "PRMT") <= 60


@pytest.mark.parametrize(("arch", "opcode"), [("sm_80", "IMMA"), ("sm_90a", "IMMA")])
def test_integer_mma(arch: str, opcode: str) -> None:
    code = read("check_matrix", "tessera::check::mma<tessera::u8, true>", arch)
    assert code.count(opcode) == 1 and code.count("LDSM") == 2


def test_resource_usage_reports_registers() -> None:
    compiled = compile_kernel(
        Instantiation("probe/check_matrix.cuh", "tessera::check::subnormal_mma", "sm_80")
    )
    table = sass.resource_usage(compiled.cubin)
    assert compiled.name in table and f"REG:{compiled.registers} " in table and "LOCAL:0" in table


def test_not_a_cubin_is_an_error() -> None:
    with pytest.raises(SassToolError, match="nvdisasm"):
        sass.disassemble(b"not a cubin")


def test_missing_tool_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass.sys, "path", [])
    monkeypatch.setattr(sass.shutil, "which", lambda _: None)
    with pytest.raises(SassToolError, match="pip install nvidia-cuda-cuobjdump"):
        sass._tool.__wrapped__("cuobjdump")


@pytest.mark.parametrize(
    ("header", "expression"),
    [("quantize_rows", "tessera::quantize_rows<tessera::bf16, 256, 2>"),
     ("silu_mul", "tessera::silu_mul<tessera::bf16, 896, 2, true>"),
     ("silu_mul", "tessera::silu_mul<tessera::bf16, 256, 1, false>")],
)  # fmt: skip
def test_rows_that_the_kernel_ahead_writes_are_read_after_the_wait_for_it(
    header: str, expression: str
) -> None:
    """And not through the read-only path, whose loads the assembler may move past the wait."""
    kernel = compile_kernel(Instantiation(f"elementwise/{header}.cuh", expression, "sm_90a"))
    code = sass.read(kernel.cubin).instructions
    (wait,) = (at for at, instruction in enumerate(code) if instruction.opcode.startswith("ACQBULK"))
    wide = [at for at, i in enumerate(code) if i.opcode.startswith("LDG") and "128" in i.opcode.split(".")]
    assert wide and min(wide) > wait
    assert not any("CONSTANT" in code[at].opcode for at in wide)
