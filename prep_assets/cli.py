"""The command line: parses, calls, prints. Dagster is imported only where there is work for it."""

import os
import sys
from pathlib import Path

import click

from prep_assets import __version__
from prep_assets.errors import PrepAssetsError, StorageError
from prep_assets.recipe import EXAMPLE, OUTPUT_VARIABLE, RECIPE_VARIABLE, Recipe, load_recipe

EXIT_CODES = """\b
Exit codes: 0 done; 1 the data is at fault; 2 usage or recipe; 3 something is stale;
4 another prepare holds this output; 5 disk or network; 130 interrupted."""

config = click.option(
    "--config", "recipe_path", type=click.Path(path_type=Path), help="The recipe; without it, the packaged example."
)


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__)
def cli() -> None:
    """Text and a tokenizer into memory-mapped token shards, as Dagster assets: a refresh costs what changed."""


@cli.command()
@config
def prepare(recipe_path: Path | None) -> None:
    """Makes what is stale and publishes a version; a second run with nothing changed does nothing."""
    from prep_assets.prepare import prepare as run  # numpy, Arrow and tokenizers: not for --help

    run(_recipe(recipe_path))


@cli.command()
@click.argument("path", type=click.Path(path_type=Path))
def verify(path: Path) -> None:
    """Checks a published dataset: an output folder, or one version's; one line per fault."""
    from prep_assets.verify import verify as faults

    found = 0
    for fault in faults(path):
        found += 1
        click.echo(fault)
    if found:
        sys.exit(1)
    click.echo(f"{path}: sound")


@cli.command()
@config
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=3000, show_default=True)
def ui(recipe_path: Path | None, host: str, port: int) -> None:
    """Opens Dagster's web interface for a recipe, with the history of its prepares."""
    from prep_assets.orchestration.prepare import dagster_home

    recipe = _recipe(recipe_path)
    home = dagster_home(recipe.work / "dagster").absolute()
    named = recipe_path or Path(os.environ.get(RECIPE_VARIABLE, EXAMPLE))
    os.environ |= {
        RECIPE_VARIABLE: str(named.absolute()),
        OUTPUT_VARIABLE: str(recipe.output),
        "DAGSTER_HOME": str(home),
    }
    os.chdir(home)  # Dagster lets an .env in the working folder overrule the environment
    arguments = ["-m", "dagster", "dev", "-m", "prep_assets.definitions", "--host", host, "--port", str(port)]
    os.execv(sys.executable, [sys.executable, *arguments])


def _recipe(path: Path | None) -> Recipe:
    if path is None and RECIPE_VARIABLE in os.environ:
        path = Path(os.environ[RECIPE_VARIABLE])
    if path is None:
        click.echo("no recipe named: this is the packaged example; name yours with --config", err=True)
    return load_recipe(path or EXAMPLE)


def main() -> None:
    """Runs the command line; an error of ours is one message, without a traceback."""
    try:
        cli(standalone_mode=False)
    except PrepAssetsError as error:
        code, message = error.exit_code, str(error)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        code, message = 130, "interrupted; the same command goes on where it stopped"
    except OSError as error:
        code, message = StorageError.exit_code, f"{error.filename or 'disk'}: {error.strerror or error}"
    else:
        return
    click.echo(f"error: {message}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
