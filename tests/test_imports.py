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
    "numerics": {"spec"},
    "formats": {"numerics", "spec"},
    "kernels": {"numerics", "spec"},
    "layers": {"kernels", "numerics", "spec"},
    "models": {"layers", "kernels", "numerics", "spec"},
    "quantization": {"models", "layers", "kernels", "formats", "numerics", "spec"},
    "engine": {"models", "layers", "formats", "kernels", "numerics", "spec"},
    "server": {"engine"},
    "evaluation": {"engine", "models", "layers", "formats", "kernels", "numerics", "spec"},
}
"""What each package may import of the others, besides itself and `errors`. `cli` may import everything."""

STDLIB_ONLY = ("spec", "hardware")
NEVER_TORCH = ("spec", "hardware", "server", "cli")


def modules(package: str) -> list[Path]:
    return sorted((SOURCE / package).rglob("*.py"))


def imported(path: Path, top_level_only: bool = False) -> set[str]:
    """Dotted names that the file imports; with `top_level_only` those that run when it is imported."""
    tree = ast.parse(path.read_text())
    nodes = _top_level(tree) if top_level_only else ast.walk(tree)
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _top_level(node: ast.AST):
    """Nodes outside function bodies and `if TYPE_CHECKING` blocks."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from _top_level(child)


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
        used = {name.split(".")[0] for name in imported(path, top_level_only=package == "cli")}
        assert "torch" not in used, path.relative_to(SOURCE)


def test_importing_the_package_loads_neither_torch_nor_cuda():
    code = "import sys, tessera; sys.exit(any(m.split('.')[0] in ('torch', 'cuda') for m in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
