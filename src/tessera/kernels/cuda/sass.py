"""Reads the machine code of a compiled kernel: what was really emitted, counted by opcode.

Uses the `cuobjdump` and `nvdisasm` of NVIDIA's pip wheels (or of a toolkit on PATH). Needs no GPU.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tessera.kernels.cuda.errors import SassToolError

# `        /*0120*/                   @!P0 IMAD.WIDE.U32 R4, R3, 0x4, R4 ;`
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*);")
_LABEL = re.compile(r"^\.(L_\w+):")
_TARGET = re.compile(r"`\(\.(L_\w+)\)")


@dataclass(frozen=True)
class Instruction:
    """One machine instruction: byte address, opcode with its modifiers (`IMAD.WIDE`), operands as text."""

    address: int
    opcode: str
    operands: str


@dataclass(frozen=True)
class Loop:
    """A backward branch and everything from its target on, in program order, both ends included."""

    instructions: tuple[Instruction, ...]

    def count(self, *opcodes: str) -> int:
        return count(self.instructions, *opcodes)


@dataclass(frozen=True)
class Sass:
    """The listing of one kernel."""

    instructions: tuple[Instruction, ...]
    loops: tuple[Loop, ...]

    def count(self, *opcodes: str) -> int:
        """Number of instructions of any of `opcodes`; "IMAD" takes every IMAD, "IMAD.HI" only those."""
        return count(self.instructions, *opcodes)

    @property
    def uses_local_memory(self) -> bool:
        return self.count("LDL", "STL") > 0

    @property
    def uses_wgmma(self) -> bool:
        """Whether warpgroup matrix instructions are there (HGMMA float, IGMMA integer, QGMMA fp8)."""
        return self.count("HGMMA", "IGMMA", "QGMMA") > 0

    def main_loop(self, *opcodes: str) -> Loop:
        """The innermost loop with the most of `opcodes` (all instructions where none is given).

        Raises ValueError where no loop contains any.
        """
        inner = [a for a in self.loops if not any(_inside(b, a) for b in self.loops if b is not a)]
        weight = [loop.count(*opcodes) if opcodes else len(loop.instructions) for loop in inner]
        if not any(weight):
            raise ValueError(f"no innermost loop contains any of {opcodes or 'the instructions'}")
        return inner[weight.index(max(weight))]

    def histogram(self) -> Counter[str]:
        """Instructions by base opcode."""
        return Counter(i.opcode.split(".")[0] for i in self.instructions)


def count(instructions: tuple[Instruction, ...], *opcodes: str) -> int:
    """How many instructions have one of `opcodes`, or one of them followed by modifiers."""
    return sum(any(i.opcode == o or i.opcode.startswith(o + ".") for o in opcodes) for i in instructions)


def read(cubin: bytes) -> Sass:
    """Parses the only kernel of a cubin. Raises SassToolError."""
    return parse(disassemble(cubin))


def disassemble(cubin: bytes) -> str:
    """`nvdisasm` listing of a cubin. Raises SassToolError."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return _run("nvdisasm", "--print-code", file.name)


def resource_usage(cubin: bytes) -> str:
    """`cuobjdump` resource table of a cubin: REG, STACK, SHARED, LOCAL, CONSTANT. Raises SassToolError."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return _run("cuobjdump", "--dump-resource-usage", file.name)


def parse(listing: str) -> Sass:
    """A listing of `nvdisasm --print-code` to instructions and loops."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}  # label -> index of the instruction after it
    for line in listing.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif match := _INSTRUCTION.match(line):
            instructions.append(Instruction(int(match[1], 16), match[2], match[3].strip()))
    loops = []
    for end, instruction in enumerate(instructions):
        target = _TARGET.search(instruction.operands)
        start = labels.get(target[1], end + 1) if target and instruction.opcode.startswith("BRA") else end + 1
        body = tuple(instructions[start : end + 1])
        # The listing ends with `BRA` to itself, which is padding and not a loop.
        if len(body) > 1:
            loops.append(Loop(body))
    return Sass(tuple(instructions), tuple(loops))


def _inside(inner: Loop, outer: Loop) -> bool:
    """Whether `inner` lies within `outer` and is smaller."""
    first, last = inner.instructions[0].address, inner.instructions[-1].address
    low, high = outer.instructions[0].address, outer.instructions[-1].address
    return low <= first and last <= high and (first, last) != (low, high)


@cache
def _tool(name: str) -> str:
    for root in sys.path:
        for path in sorted(Path(root).glob(f"nvidia/*/bin/{name}")) if root else ():
            return str(path)
    if found := shutil.which(name):
        return found
    raise SassToolError(f"{name} not found: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")


def _run(name: str, *args: str) -> str:
    done = subprocess.run([_tool(name), *args], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SassToolError(f"{name} {' '.join(args)} failed with {done.returncode}: {done.stderr.strip()}")
    return done.stdout
