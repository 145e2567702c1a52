"""`stayfinite rules`: the list of all rules."""

from __future__ import annotations

import click

from stayfinite.findings import FAMILIES, all_rules, dumps
from stayfinite.report.terminal import console, table


@click.command("rules")
@click.option(
    "--family", type=click.Choice(sorted(FAMILIES), case_sensitive=False), help="Only one family of rules."
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(family: str | None, form: str) -> None:
    """List every rule: its code, name, level, cause and what it finds.

    `stayfinite explain CODE` prints a rule's own page.
    """
    rules = [rule for rule in all_rules() if family is None or rule.code.startswith(family.upper())]
    if form == "json":
        click.echo(
            dumps(
                [
                    {
                        "code": rule.code,
                        "name": rule.name,
                        "severity": rule.severity.value,
                        "cause": rule.cause,
                        "summary": rule.summary(),
                    }
                    for rule in rules
                ],
                indent=2,
            )
        )
        return
    rows = [(rule.code, rule.name, rule.severity.value, rule.cause, rule.summary()) for rule in rules]
    console().print(table(("code", "name", "level", "cause", "what it finds"), rows))
