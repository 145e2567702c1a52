"""`stayfinite explain CODE`: a rule's own page."""

from __future__ import annotations

import difflib

import click

from stayfinite.findings import CAUSES, Rule, all_rules, find_rule
from stayfinite.findings.retired import RETIRED
from stayfinite.report.terminal import console, markdown


@click.command("explain")
@click.argument("code")
def command(code: str) -> None:
    """Print the page of a rule, given its CODE (STA001), its name, or a cause (LOG_DOMAIN).

    The page says what the rule finds, why it is bad, an example, the fix, and the popular fix
    that does not work.
    """
    replaced = RETIRED.get(code.strip().upper())
    if replaced is not None:
        click.echo(f"{code.strip().upper()} is retired: {replaced} replaced it and says the same.\n")
    rule = find_rule(replaced or code)
    if rule is not None:
        _show(rule)
        return
    cause = code.strip().upper().replace("-", "_")
    if cause in CAUSES:
        of_cause = [rule for rule in all_rules() if rule.cause == cause]
        click.echo(f"{cause}: {CAUSES[cause]}.")
        if not of_cause:
            click.echo("No rule of this version finds it yet.")
        for rule in of_cause:
            click.echo()
            _show(rule)
        return
    known = [name for rule in all_rules() for name in (rule.code, rule.name)] + list(CAUSES)
    close = difflib.get_close_matches(code.strip(), known, n=1) or difflib.get_close_matches(
        cause, known, n=1
    )
    hint = f" Did you mean {close[0]}?" if close else ""
    raise click.UsageError(f"there is no rule or cause {code!r}.{hint} `stayfinite rules` lists them all.")


def _show(rule: Rule[object]) -> None:
    title = f"# {rule.code} {rule.name}"
    level = f"Level: {rule.severity.value}. Cause: {rule.cause}, {CAUSES[rule.cause]}."
    console().print(markdown(f"{title}\n\n{level}\n\n{rule.page()}"))
