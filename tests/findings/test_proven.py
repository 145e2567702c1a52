"""A proof in its incident: what is cured says so, what is refuted or contradicted goes to the end, nothing is lost."""

from stayfinite.findings import Finding, Incident, Severity
from stayfinite.findings.proven import attach
from stayfinite.findings.trial import ProofReport, Tried
from stayfinite.report import incident as incident_text


def finding(code: str, cause: str, line: int) -> Finding:
    return Finding(code, code.lower(), cause, Severity.ERROR, "message", "fix", file="a.py", line=line)


def incident() -> Incident:
    found = [
        finding("STA013", "PURE_LOWP_OPTIMIZER", 3),
        finding("NUM001", "LOG_DOMAIN", 7),
        finding("NUM001", "LOG_DOMAIN", 9),
    ]
    return Incident(step=1, phase="forward", trigger="loss", findings=found)


def test_a_cause_whose_own_remedy_fails_is_refuted() -> None:
    seen = incident()
    tried = [Tried("log-space", "", "proved", distortion=0.0), Tried("float32", "", "failed", "still")]
    attach(seen, ProofReport(tried, file="a.py", line=7, patch="diff"))
    assert [(f.code, f.line) for f in seen.findings] == [("NUM001", 7), ("NUM001", 9), ("STA013", 3)]
    assert seen.findings[0].proof is not None and seen.findings[0].proof.remedy == "log-space"
    assert seen.findings[0].patch == "diff" and seen.findings[1].proof is None
    assert "refuted: float32" in seen.findings[2].message and seen.findings[2].severity is Severity.WARNING


def test_a_remedy_for_a_mistake_of_the_run_is_that_finding_s_wherever_the_birth_was() -> None:
    found = [finding("STA034", "SCALER_MISUSE", 12), finding("RUN010", "LR_DIVERGENCE", 7)]
    seen = Incident(step=1, phase="forward", trigger="loss", findings=found)
    attach(seen, ProofReport([Tried("scaler-step", "", "proved")], file="a.py", line=7, patch="diff"))
    first, second = seen.findings
    assert first.code == "STA034" and first.proof is not None and first.patch == "diff"
    assert second.proof is None and second.patch is None


def test_a_learning_rate_is_not_refuted_by_a_slightly_lower_one() -> None:
    seen = Incident(step=1, phase="forward", trigger="loss", findings=[finding("RUN010", "LR_DIVERGENCE", 3)])
    attach(seen, ProofReport([Tried("much-lower-rate", "", "failed", "still")], file="a.py", line=7))
    assert seen.findings[0].severity is Severity.ERROR and "refuted" not in seen.findings[0].message


def test_blame_outranks_a_finding_that_says_otherwise() -> None:
    seen = Incident(
        step=1,
        phase="forward",
        trigger="loss",
        findings=[finding("RUN001", "LR_DIVERGENCE", 3), *incident().findings[1:]],
    )
    attach(seen, ProofReport([], blame="data"))
    assert [f.code for f in seen.findings] == ["NUM001", "NUM001", "RUN001"]
    assert "the data is to blame" in seen.findings[2].message


def test_an_incident_with_a_proof_survives_json() -> None:
    seen = incident()
    attach(
        seen,
        ProofReport([Tried("log-space", "say", "proved", loss=float("inf"))], blame="data", standalone="x"),
    )
    again = Incident.from_json(seen.to_json())
    assert again.tried == seen.tried and again.blame == "data" and again.standalone == "x"
    assert seen.to_json()["tried"][0]["finite"] is True  # type: ignore[index]


def test_a_patch_that_is_another_remedy_than_the_first_proved_one_says_whose_it_is() -> None:
    tried = [
        Tried("float32-operation", "in float32", "proved"),
        Tried("autocast-bfloat16", "in bfloat16", "proved"),
    ]
    seen = incident()
    attach(seen, ProofReport(tried, patch="--- a/a.py\n+++ b/a.py\n-x\n+y\n", patched_by="autocast-bfloat16"))
    assert Incident.from_json(seen.to_json()).patched_by == "autocast-bfloat16"
    shown = [line.plain for line in incident_text._proof(seen)]
    assert shown[2] == "Also     proved, as a change of the source: autocast-bfloat16: in bfloat16"
    assert shown[3:5] == ["         -x", "         +y"]

    attach(seen, ProofReport(tried, patch="diff", patched_by="float32-operation"))
    assert seen.patched_by is None and "patched_by" not in seen.to_json()
