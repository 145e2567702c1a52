"""The command line: one file = one command, found by its name and imported only when it is used."""

from __future__ import annotations

import importlib
import pkgutil

from stayfinite.sandbox import hash_seed

hash_seed.pin()  # `stayfinite run` starts itself anew: nothing else is loaded before it does

import click  # noqa: E402

import stayfinite  # noqa: E402


class _Commands(click.Group):
    """Every public module of this package holds a click command named `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = importlib.import_module(f"{__name__}.{cmd_name}").command
        return command


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(stayfinite.__version__, prog_name="stayfinite")
def main() -> None:
    """Keep PyTorch training runs finite.

    In a script, add two lines: `from stayfinite import Guard` and `guard = Guard(model, optimizer)`,
    then call `guard.step(...)` or loop over `guard.watch(loader)`.

    Exit codes: 0 nothing at error level, 1 findings at error level, 2 wrong usage or unreadable input.
    """
