"""Benchmark results as JSON: {machine, versions, date, rows}."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

Row = Mapping[str, str | int | float | None]


def document(rows: Sequence[Row], packages: Sequence[str]) -> dict[str, Any]:
    """Rows with what they were measured on and with; packages that are not installed are left out."""
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "machine": machine(),
        "versions": versions,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": [dict(row) for row in rows],
    }


def machine() -> dict[str, str | int]:
    """Processor, cores this process may use, and memory in bytes."""
    return {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.machine()}",
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Whole or not at all: written beside `path`, synced, renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
