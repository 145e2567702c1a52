"""The report on a terminal: who gave a value and who was only given it, and the line of a cause that is elsewhere."""

from __future__ import annotations

from dataclasses import replace

from stayfinite.findings import Birth, Finding, Incident, Severity
from stayfinite.findings.trial import Tried
from stayfinite.report.incident import lines
from stayfinite.report.refusal import cause_and_fix

_BIRTH = Birth(
    op="outside",
    call="Tensor.lerp_",
    file="train.py",
    line=9,
    source="opt.step()",
    function="<module>",
    module=None,
    kind="nan",
    nan=1,
    inf=0,
    numel=8,
    first_index=(2,),
    dtype="float32",
)
_LOADED = Finding(
    "STA032", "loaded-not-finite", "STATE_POISONED", Severity.ERROR, "exp_avg is bad", "load another"
)


def _said(birth: Birth = _BIRTH, finding: Finding = _LOADED) -> str:
    incident = Incident(3, "optimizer", "parameter", birth=birth, findings=[finding])
    return "\n".join(line.plain for line in lines(incident))


def test_an_op_that_only_read_a_bad_value_did_not_give_it() -> None:
    assert "what Tensor.lerp_ was given holds 1 NaN" in _said()
    computed = replace(_BIRTH, op="aten.log.default", call="torch.log")
    assert "torch.log (aten.log.default) gave 1 NaN" in _said(computed)


def test_a_cause_at_another_line_is_shown_with_it() -> None:
    assert "exp_avg is bad\n" in _said(finding=replace(_LOADED, file="train.py", line=9))
    assert "exp_avg is bad (train.py:4)\n" in _said(finding=replace(_LOADED, file="train.py", line=4))


def test_popular_remedies_that_failed_alike_share_their_reason() -> None:
    tried = [
        Tried("larger-eps", reason="still not finite at line 9", popular=True),
        Tried("lower-rate", reason="it raised ValueError", popular=True),
        Tried("clipping", reason="still not finite at line 9", popular=True),
    ]
    incident = Incident(3, "optimizer", "parameter", birth=_BIRTH, findings=[_LOADED], tried=tried)
    said = [line.plain for line in lines(incident) if line.plain.startswith("Failed")]
    assert said == [
        "Failed   larger-eps, clipping (still not finite at line 9); lower-rate (it raised ValueError)"
    ]


def test_of_many_samples_the_first_are_shown_as_such() -> None:
    assert ", samples 0, 1, 2\n" in _said(replace(_BIRTH, samples=(0, 1, 2)))
    assert ", samples 0, 1, 2, 3, 4, 5, 6, 7 and more\n" in _said(replace(_BIRTH, samples=tuple(range(13))))


def test_what_not_to_do_here_goes_before_what_the_page_says() -> None:
    assert "Do not   lower the rate" in _said(finding=replace(_LOADED, avoid="lower the rate"))
    assert Finding.from_json(replace(_LOADED, avoid="lower the rate").to_json()).avoid == "lower the rate"


def test_an_op_did_not_give_the_parameter_that_it_read() -> None:
    held = replace(_BIRTH, op="parameter", call="Tensor.add")
    assert "the parameter that Tensor.add was given holds 1 NaN" in _said(held)


def test_the_line_of_a_consequence_is_not_where_it_began() -> None:
    clip = replace(_LOADED, code="STA025", name="clip-by-bad-norm", file="train.py", line=40)
    told_by_clip = replace(_BIRTH, op=clip.name, call=clip.name, line=40)
    assert "It began" not in cause_and_fix(
        Incident(0, "backward", "loss", birth=told_by_clip, findings=[_LOADED, clip])
    )
    assert "It began at train.py:9" in cause_and_fix(
        Incident(0, "backward", "loss", birth=_BIRTH, findings=[_LOADED])
    )
