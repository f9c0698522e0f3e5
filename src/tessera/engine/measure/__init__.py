"""What this machine does in practice: memory, products, launches, a whole decode step. For the planner.

`cpu.speeds()` and `cuda.speeds()` yield one `Speed` after another; a minute is more than they take.
"""

from tessera.engine.measure.speed import Speed

__all__ = ["Speed"]
