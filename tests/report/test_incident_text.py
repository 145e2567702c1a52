"""The report on a terminal: who gave a value and who was only given it, and the line of a cause that is elsewhere."""

from __future__ import annotations

from dataclasses import replace

from stayfinite.findings import Birth, Finding, Incident, Severity
from stayfinite.findings.trial import Tried
from stayfinite.report.incident import lines

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


def test_samples_that_are_not_listed_are_not_denied() -> None:
    assert "samples 0, 1, 2, 3, 4, 5, 6, 7\n" in _said(replace(_BIRTH, samples=tuple(range(8)))) + "\n"
    assert "samples 0, 1, 2, 3, 4, 5, 6, 7, ..." in _said(replace(_BIRTH, samples=tuple(range(9))))
