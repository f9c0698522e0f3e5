"""/metrics: the engine's counts in the Prometheus text format (version 0.0.4)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Final

from tessera.engine.metrics import EngineMetrics, Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "tessera:"
_GAUGES: Final = {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"}


def exposition(metrics: EngineMetrics, refused: int, kernel_ids: Sequence[str]) -> str:
    """Every field of `metrics`, and `admission_rejections` (requests answered 503, the queue being full).

    `kernel_info` has one series, always 1, per kernel that computes the model.

    Counters get the suffix `_total`; `request_success` has one series per finish reason.
    """
    lines: list[str] = []
    for field in fields(metrics):
        lines += _series(field.name, getattr(metrics, field.name))
    lines += _series("admission_rejections", refused)
    lines.append(f"# TYPE {PREFIX}kernel_info gauge")
    lines += [f'{PREFIX}kernel_info{{kernel="{kernel}"}} 1' for kernel in kernel_ids]
    return "\n".join(lines) + "\n"


def _series(name: str, value: object) -> Iterator[str]:
    full = PREFIX + name
    if isinstance(value, Histogram):
        yield f"# TYPE {full} histogram"
        for bound, count in value.cumulative():
            label = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield f'{full}_bucket{{le="{label}"}} {count}'
        yield f"{full}_sum {value.sum}"
        yield f"{full}_count {value.count}"
    elif isinstance(value, Mapping):
        yield f"# TYPE {full}_total counter"
        for reason, count in value.items():
            yield f'{full}_total{{finished_reason="{reason}"}} {count}'
    elif name in _GAUGES:
        yield f"# TYPE {full} gauge"
        yield f"{full} {value}"
    else:
        yield f"# TYPE {full}_total counter"
        yield f"{full}_total {value}"
