"""Packages import only what ARCHITECTURE.md's table allows, and light packages stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "tessera"

FLOOR = {"errors", "version"}
ALLOWED: dict[str, set[str]] = {
    "spec": set(),
    "hardware": set(),
    "planner": {"spec", "hardware"},
    "numerics": {"spec"},
    "formats": {"numerics", "spec"},
    "kernels": {"numerics", "spec"},
    "compiler": {"kernels", "numerics", "spec", "hardware"},
    "layers": {"kernels", "numerics", "spec"},
    "models": {"layers", "kernels", "numerics", "spec"},
    "quantization": {"models", "layers", "kernels", "formats", "numerics", "spec"},
    "engine": {"models", "layers", "formats", "kernels", "planner", "hardware", "numerics", "spec"},
    "server": {"engine"},
    "evaluation": {"engine", "models", "layers", "formats", "kernels", "numerics", "spec"},
}
"""What each package may import of the others, besides itself and `errors`. `cli` may import everything."""

STDLIB_ONLY = ("spec", "hardware", "planner")
NEVER_TORCH = ("spec", "hardware", "planner", "server")


def modules(package: str) -> list[Path]:
    return sorted((SOURCE / package).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Dotted names that the file imports anywhere."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_every_package_is_in_the_table():
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages - ALLOWED.keys() <= {"cli"}


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_follow_the_arrows(package):
    for path in modules(package):
        used = {name.split(".")[1] for name in imported(path) if name.startswith("tessera.")}
        wrong = used - ALLOWED[package] - FLOOR - {package}
        assert not wrong, f"{path.relative_to(SOURCE)} imports {', '.join(sorted(wrong))}"


@pytest.mark.parametrize("package", STDLIB_ONLY)
def test_descriptions_need_the_standard_library_only(package):
    for path in modules(package):
        used = {name.split(".")[0] for name in imported(path)}
        assert used <= sys.stdlib_module_names | {"tessera"}, path.relative_to(SOURCE)


@pytest.mark.parametrize("package", NEVER_TORCH)
def test_light_packages_do_not_import_torch(package):
    for path in modules(package):
        used = {name.split(".")[0] for name in imported(path)}
        assert "torch" not in used, path.relative_to(SOURCE)


@pytest.mark.parametrize("module", ["tessera", "tessera.cli.main", "tessera.server.app"])
def test_importing_loads_neither_torch_nor_cuda(module):
    code = f"import sys, {module}; sys.exit(any(m.split('.')[0] in ('torch', 'cuda') for m in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
