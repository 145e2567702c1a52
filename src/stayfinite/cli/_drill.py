"""The `--drill` of `stayfinite run`: its optional STEP, and how its answer is shown."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

import click

from stayfinite.cli._report_file import write_report

if TYPE_CHECKING:
    from stayfinite.launch import Options

DEFAULT_STEP = 3


class CommandWithDrill(click.Command):
    """Takes `--drill train.py` and `--drill 20 train.py`: what follows is a step only if it is a number."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        valued = {
            name for option in self.params if not getattr(option, "is_flag", True) for name in option.opts
        }
        given, position = list(args), 0
        while position < len(given) and given[position].startswith("-") and given[position] != "--":
            following = given[position + 1 : position + 2]
            if given[position] == "--drill":
                number = following[0] if following and following[0].lstrip("+-").isdigit() else None
                given[position : position + 1 + (number is not None)] = [f"--drill={number or DEFAULT_STEP}"]
            elif given[position] in valued:
                position += 1
            position += 1
        return super().parse_args(ctx, given)


def drill_and_leave(options: Options, after: int) -> NoReturn:
    """Drill, show, and end with 0 if everything was survived, 1 if not, 2 if there was nothing to drill."""
    from stayfinite.cli._output import Output  # here: every ordinary `run` starts sooner without it
    from stayfinite.findings import dumps
    from stayfinite.launch.drill import DrillRefused, drill
    from stayfinite.report.drill import drill_lines

    try:
        report = drill(options, after, lambda text: click.echo(f"stayfinite: {text}", err=True))
    except DrillRefused as refused:
        raise click.UsageError(f"{refused}.") from refused
    except KeyboardInterrupt:
        click.echo("stayfinite: the drill was interrupted.", err=True)
        sys.exit(130)
    if options.form == "json":
        text = dumps(report.to_json(), indent=2)
        if options.output is None:
            click.echo(text)
        else:
            write_report(options.output, text + "\n")
    else:
        Output(path=options.output).deliver([], lambda: drill_lines(report))
    sys.exit(0 if report.passed else 1)
