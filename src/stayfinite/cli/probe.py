"""`stayfinite probe module:factory`: examine a model before its training."""

from __future__ import annotations

import sys

import click

from stayfinite.cli._output import Output, import_torch, output_options


class _RangeType(click.ParamType[tuple[str, float, float]]):
    """low:high, or name=low:high."""

    name = "range"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float, float]:
        name, _, bounds = value.rpartition("=")
        low, colon, high = bounds.partition(":")
        try:
            pair = (float(low), float(high))
        except ValueError:
            pair = (0.0, 0.0)
        if not colon or not pair[0] < pair[1]:
            self.fail(
                f"{value!r} is not LOW:HIGH with two numbers, the lower one first (name=LOW:HIGH for one input)"
            )
        return name, *pair


@click.command("probe")
@click.argument("factory", metavar="MODULE:FACTORY")
@output_options
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(["forward", "loss", "gradient", "stability", "edge", "search"]),
    help="Only this battery (may be given several times).",
)
@click.option(
    "--budget", type=click.FloatRange(0), default=30.0, show_default=True, metavar="SECONDS",
    help="Time for the directed search; 0 leaves it out.",
)  # fmt: skip
@click.option(
    "--range", "ranges", multiple=True, type=_RangeType(), metavar="[NAME=]LOW:HIGH",
    help="The range of the float inputs, or of the one named.  [default: as the batch shows]",
)  # fmt: skip
@click.option("--stress", is_flag=True, help="Also a short run at 10 times the learning rate.")
@click.option("--all", "everything", is_flag=True, help="Show every finding, however many there are.")
def command(
    factory: str,
    output: Output,
    only: tuple[str, ...],
    budget: float,
    ranges: tuple[tuple[str, float, float], ...],
    stress: bool,
    everything: bool,
) -> None:
    """Examine a model before its training: five batteries, a search for an input that fails.

    FACTORY is a function without arguments, imported from the current folder, that returns (model, batch, loss) or
    (model, batch, loss, optimizer), a dict with these keys, or a stayfinite.probe.Probe. The loss is called as
    loss(model, batch); a criterion such as nn.CrossEntropyLoss() as loss(model(inputs), target). Models that return
    their loss, such as those of transformers, need none. The batch may be a function or a loader.

    The batteries: forward (train and eval), loss (finite, against chance), gradient (reaches every parameter, by
    depth), stability (half precision, headroom, growth, one update), edge (zeros, constants, masks, single samples...).
    The search then drives the inputs towards the edge of log, division, roots, exp... inside their range, and prints a
    batch that fails as a test. The model, its random numbers and your files are left as they are.

    \b
    stayfinite probe train:make_probe
    stayfinite probe train:make_probe --range 0:1 --budget 60
    stayfinite probe train.py:make_probe --only gradient --only edge --stress
    """
    import_torch("probe", "run a model")
    from stayfinite.cli import _probe

    sys.exit(_probe.run(_probe.Request(factory, output, only, budget, ranges, stress, everything)))
