"""The command line: parses, calls, prints. Dagster is imported only where there is work for it."""

import json
import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

import click

from prep_assets import __version__
from prep_assets.errors import PrepAssetsError, StorageError

if TYPE_CHECKING:
    from prep_assets.layout import Layout
    from prep_assets.recipe import Recipe  # pydantic: not for --help, and not while Ctrl-C still ends in a traceback

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
@click.option("--rescan", is_flag=True, help="Read every file again, whatever is known of it.")
def prepare(recipe_path: Path | None, rescan: bool) -> None:
    """Makes what is stale and publishes a version; a second run with nothing changed does nothing."""
    from prep_assets.prepare import prepare as run  # numpy, Arrow and tokenizers: not for --help

    run(_recipe(recipe_path), rescan=rescan)


@cli.command()
@config
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def plan(recipe_path: Path | None, as_json: bool) -> None:
    """Shows what prepare would do, why, and at what cost. Exit code 0: all is fresh, 3: something is stale."""
    from prep_assets.plan import make_plan
    from prep_assets.prepare import opened
    from prep_assets.tables import print_plan

    with opened(_recipe(recipe_path)) as (build, _):
        found = make_plan(build)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1))
    else:
        print_plan(found)
    sys.exit(0 if found.is_fresh else 3)


@cli.command()
@config
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def versions(recipe_path: Path | None, as_json: bool) -> None:
    """Lists the published versions, the newest last."""
    from prep_assets.tables import print_versions
    from prep_assets.versions import list_versions

    found = list(list_versions(_layout(recipe_path)))
    if as_json:
        rows = [{**it.publication.model_dump(exclude={"payloads"}), **vars(it), "publication": None} for it in found]
        click.echo(json.dumps({"versions": [{k: v for k, v in row.items() if k != "publication"} for row in rows]}))
    else:
        print_versions(found)


@cli.command()
@config
@click.argument("version")
def rollback(recipe_path: Path | None, version: str) -> None:
    """Points `latest` at an earlier version and holds it there, until unpin."""
    _pin(recipe_path, version)


@cli.command()
@config
@click.argument("version")
def pin(recipe_path: Path | None, version: str) -> None:
    """Holds `latest` at a version: refreshes publish nothing until unpin. An id's beginning is enough."""
    _pin(recipe_path, version)


@cli.command()
@config
def unpin(recipe_path: Path | None) -> None:
    """Lets refreshes publish again."""
    from prep_assets.versions import unpin as release

    release(_layout(recipe_path))
    click.echo("unpinned: the next prepare publishes what is current")


@cli.command()
@config
@click.option("--tokens", is_flag=True, help="Free the token partitions too, not only the raw text.")
def clean(recipe_path: Path | None, tokens: bool) -> None:
    """Frees intermediates; says what it freed and what the next refresh will cost more."""
    from prep_assets.cleanup import clean as free
    from prep_assets.prepare import size

    freed = free(_layout(recipe_path), tokens=tokens)
    click.echo(
        f"{size(freed)} freed; the next refresh reads every file that holds documents of a changed shard again"
        f"{', and copies known tokens from the published pairs' if tokens else ''}: no document is tokenized again"
    )


@cli.command()
@config
def purge(recipe_path: Path | None) -> None:
    """Removes excluded documents from everything of ours, all versions included, and proves it by a search."""
    from prep_assets.prepare import opened, size
    from prep_assets.purge import purge as remove

    with opened(_recipe(recipe_path), sole=True) as (build, _):
        pass
    done = remove(build)
    click.echo(
        f"{done.documents:,} excluded documents: {len(done.versions)} versions and {done.payloads} payloads removed"
        f" ({size(done.size)})\n{done.needles:,} of their texts and token runs looked for in {done.searched:,} files:"
        f" found in {len(done.found)}"
    )
    for identifier in done.untold:
        click.echo(f"version {identifier}: removed, since it cannot be told whether it held one of them")
    for path in done.found:
        click.echo(f"{path}: holds one of them as a part of another document")


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
    from prep_assets.orchestration.prepare import check_home, dagster_home
    from prep_assets.recipe import EXAMPLE, OUTPUT_VARIABLE, RECIPE_VARIABLE

    recipe = _recipe(recipe_path)
    home = dagster_home(recipe.work / "dagster").absolute()
    check_home(home)
    _check_port(host, port)
    named = recipe_path or Path(os.environ.get(RECIPE_VARIABLE) or EXAMPLE)
    os.environ |= {
        RECIPE_VARIABLE: str(named.absolute()),
        OUTPUT_VARIABLE: str(recipe.output),
        "DAGSTER_HOME": str(home),
    }
    os.chdir(home)  # Dagster lets an .env in the working folder overrule the environment
    # The workspace names the code location as the runs of prepare do: without it they would not show under their job.
    workspace = str(Path(__file__).with_name("workspace.yaml"))
    arguments = ["-m", "dagster", "dev", "-w", workspace, "--host", host, "--port", str(port)]
    os.execv(sys.executable, [sys.executable, "-W", "ignore:Function `dev_command`", *arguments])


def _check_port(host: str, port: int) -> None:
    """Dagster would go on without a web server where the port is taken, and only log it."""
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise click.UsageError(f"{host}:{port}: {error.strerror}; name another with --port") from error


def _layout(path: Path | None) -> "Layout":
    from prep_assets.layout import Layout

    recipe = _recipe(path)
    return Layout(recipe.output, recipe.work)


def _pin(path: Path | None, version: str) -> None:
    from prep_assets.versions import pin as hold

    layout = _layout(path)
    held = hold(layout, version)
    click.echo(f"{layout.latest} leads to version {held.id} and stays there until prep-assets unpin")


def _recipe(path: Path | None) -> "Recipe":
    from prep_assets.recipe import EXAMPLE, RECIPE_VARIABLE, load_recipe

    if path is None and (named := os.environ.get(RECIPE_VARIABLE)):
        path = Path(named)
    if path is None:
        click.echo("no recipe named: this is the packaged example; name yours with --config", err=True)
    return load_recipe(path or EXAMPLE)


def main() -> None:
    """Runs the command line; an error of ours is one message, without a traceback."""
    for stream in (sys.stdout, sys.stderr):  # names of files and tokens may hold what the terminal's encoding does not
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
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
