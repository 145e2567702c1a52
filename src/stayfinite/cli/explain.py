"""`stayfinite explain CODE`: a rule's own page."""

from __future__ import annotations

import difflib

import click

from stayfinite.findings import CAUSES, Rule, all_rules, find_rule
from stayfinite.findings.retired import RETIRED
from stayfinite.findings.symptoms import SYMPTOMS, find_symptom
from stayfinite.report.terminal import console, markdown


@click.command("explain")
@click.argument("code", required=False)
@click.option(
    "--symptom", "symptom", is_flag=False, flag_value="", default=None, metavar="[NAME]",
    help="What to check when you see this: few-batches, sudden-jump, first-batch... Without a name: the list.",
)  # fmt: skip
def command(code: str | None, symptom: str | None) -> None:
    """Print the page of a rule, given its CODE (STA001), its name, or a cause (LOG_DOMAIN).

    The page says what the rule finds, why it is bad, an example, the fix, and the popular fix
    that does not work. With --symptom: from what you see to the causes to check, in order.

    \b
    stayfinite explain NUM001
    stayfinite explain --symptom
    stayfinite explain --symptom "loss 0.0"
    """
    if symptom is not None:
        _show_symptom(" ".join(part for part in (symptom, code or "") if part))
        return
    if code is None:
        raise click.UsageError("name a rule or a cause (stayfinite rules lists them), or use --symptom")
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


def _show_symptom(text: str) -> None:
    if not text.strip():
        for symptom in SYMPTOMS:
            click.echo(f"{symptom.name:<20}{symptom.title}")
        click.echo("\nstayfinite explain --symptom NAME: what to check, in order")
        return
    found = find_symptom(text)
    if found is None:
        names = ", ".join(symptom.name for symptom in SYMPTOMS)
        raise click.UsageError(f"there is no symptom {text!r}; choose one of {names}")
    click.echo(f"{found.name}: {found.title}\n")
    for number, suspect in enumerate(found.suspects, 1):
        named = [rule for rule in (find_rule(code) for code in suspect.codes) if rule is not None]
        click.echo(f"{number}. {suspect.what}")
        click.echo(f"   check:  {suspect.command}")
        click.echo(f"   rules:  {', '.join(f'{rule.code} {rule.name}' for rule in named)}")
    click.echo(
        "\nstayfinite explain CODE prints a rule's page, with the fix and the popular fix that does not work."
    )


def _show(rule: Rule[object]) -> None:
    title = f"# {rule.code} {rule.name}"
    level = f"Level: {rule.severity.value}. Cause: {rule.cause}, {CAUSES[rule.cause]}."
    console().print(markdown(f"{title}\n\n{level}\n\n{rule.page()}"))
