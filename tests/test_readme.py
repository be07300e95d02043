"""The README's table of keys is the model's, and its commands are real."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

import click
from pydantic import BaseModel

from prep_assets.cli import cli
from prep_assets.recipe import Recipe

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- made from the model by tests/test_readme.py -->\n", "<!-- end -->"


def rows(model: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from rows(annotation, f"{prefix}{name}.")
            continue
        default = "required" if field.is_required() else f"`{shown(field.default)}`"
        literals = [
            value
            for kind in (annotation, *get_args(annotation))
            if get_origin(kind) is Literal
            for value in get_args(kind)
        ]
        allowed = f"; one of {', '.join(f'`{value}`' for value in literals)}" if len(literals) > 1 else ""
        yield f"| `{prefix}{name}` | {default} | {field.description}{allowed} |"


def shown(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def table() -> str:
    return "\n".join(["| key | default | |", "|---|---|---|", *rows()]) + "\n"


def test_the_table_of_keys_is_the_models() -> None:
    text = README.read_text()
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == table()


def test_every_command_stands_in_the_readme() -> None:
    assert isinstance(cli, click.Group)
    text = README.read_text()
    for name in cli.commands:
        assert f"prep-assets {name}" in text or f"`{name} ID`" in text or f"`{name}`" in text, name
