"""A file imports from its own ring or from a higher number (STYLE: rings), so that the core never knows Dagster."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "prep_assets"
RINGS = {
    "definitions": 1,
    "cli": 1,
    "prepare": 1,
    "progress": 1,
    "tables": 1,
    "orchestration": 2,
    "stages": 3,
    "plan": 4,
    "scan": 4,
    "build": 4,
    "round_trip": 4,
    "cleanup": 4,
    "purge": 4,
    "versions": 4,
    "publication": 4,
    "reuse": 4,
    "verify": 4,
    "workspace": 4,
    "tokenizer_facts": 4,
    "tokenizer": 5,
    "formats": 5,
    "sources": 5,
    "engines": 5,
    "arrow_stream": 6,
    "cpus": 6,
    "digest": 6,
    "exclusion": 6,
    "lookup": 6,
    "equivalents": 6,
    "errors": 6,
    "layout": 6,
    "parallel": 6,
    "payload": 6,
    "ragged": 6,
    "receipt": 6,
    "recipe": 6,
}
# The tokenizer owns its engine, and the token dtype is the pair's.
ALLOWED = {("tokenizer", "engines"), ("tokenizer", "formats"), ("tokenizer", "sources")}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "example" not in path.parts and path.name != "__init__.py")


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_from_higher_rings_alone(path: Path) -> None:
    part = part_of(path)
    for module in imports(path):
        if not module.startswith("prep_assets."):
            continue
        other = module.split(".")[1]
        if other == part or (part, other) in ALLOWED:
            continue
        assert RINGS[part] < RINGS[other] or RINGS[part] == RINGS[other] != 5, f"{path.name} imports {module}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_dagster_is_imported_in_the_two_outer_rings_alone(path: Path) -> None:
    uses = any(module.split(".")[0] == "dagster" for module in imports(path))
    assert not uses or RINGS[part_of(path)] <= 2


@pytest.mark.parametrize("folder", ["stages", "formats"])
def test_no_stage_and_no_format_imports_another(folder: str) -> None:
    for path in (PACKAGE / folder).glob("*.py"):
        assert not [module for module in imports(path) if module.startswith(f"prep_assets.{folder}.")], path
