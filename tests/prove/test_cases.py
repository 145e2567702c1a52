"""Failing scripts of many styles: a remedy that cures each is proved on it, and the patched script is clean."""

import gc
import os
import re
from pathlib import Path

import pytest

import preloaded
import prove
from stayfinite.findings.trial import ProofReport

CASES = sorted((Path(__file__).parent / "cases").glob("*.py"))
ALWAYS = (
    "entropy_of_softmax",
    "fp16_square_sum",
    "hinge_distance",
    "where_log",
)
PUBLIC = Path(__file__).parents[3] / "shared" / "cases"


@pytest.fixture(scope="module", autouse=True)
def _forks_are_cheap() -> None:
    gc.freeze()


def accepted(script: Path) -> list[str]:
    """The kinds of remedy that cure it, from its first line; fixed before any remedy was written."""
    return script.read_text().splitlines()[0].removeprefix("# accepts: ").split()


SAME = {
    "floor": ("log-floor", "log-eps", "scale-floor"), "norm": ("eps-inside",), "eps": ("guarded-division",),
    "margin": ("domain-margin",), "std-of-one": ("spread-of-one",), "zero-infinity": ("ctc-zero-infinity",),
    "float32": ("float32-operation", "float32"), "float32-optimizer": ("master-weights",), "clip": ("clipping",),
    "guarded-division": ("smoothed-count",),  # the count is guarded where it is made
    "growth": ("much-lower-rate",), "skip-step": ("skipped-step",), "max-subtracted": ("max-subtracted",),
}  # fmt: skip


def check(script: Path) -> ProofReport:
    report = prove.proof_of(script)
    assert report.proved is not None, report.remark
    assert not report.worthless, report.remark
    words = [name for word in accepted(script) for name in (word, *SAME.get(word, ()))]
    assert set(report.proved.remedy.split(" + ")) & set(words), (report.proved.remedy, words)
    for one in report.tried:
        assert one.verdict != "proved" or one.distortion is None or one.distortion <= 0.01
    return report


@pytest.mark.parametrize(
    "script", [pytest.param(s, id=s.stem, marks=() if s.stem in ALWAYS else pytest.mark.long) for s in CASES]
)
def test_a_remedy_is_proved(script: Path) -> None:
    report = check(script)
    if report.patch is not None:
        assert prove.patched_runs(script, report.patch, preloaded.run) == "clean"


def test_a_clamp_that_cuts_the_failing_sample_off_loses(tmp_path: Path) -> None:
    report = prove.proof_of(CASES[[c.stem for c in CASES].index("entropy_of_softmax")])
    verdicts = {one.remedy: one.verdict for one in report.tried}
    assert verdicts["log-space"] == "proved"
    assert verdicts["log-floor"] in ("no gradient", "distorts")
    popular = [one for one in report.tried if one.popular]
    assert popular and not any(one.proved for one in popular)


def test_a_script_that_fails_only_sometimes_proves_nothing(tmp_path: Path) -> None:
    script = tmp_path / "flaky.py"
    script.write_text(
        "import os, torch\nx = torch.ones(3, requires_grad=True)\n"
        f"times = open({str(tmp_path / 'times')!r}, 'a+'); times.write('.'); times.flush(); times.seek(0)\n"
        "(x * torch.log(torch.tensor(float(len(times.read()) % 2 == 1)))).sum().backward()\n"
    )
    (tmp_path / "times").write_text(".")
    report = prove.proof_of(script)
    assert report.blame == "flaky" and report.proved is None and "nothing can be proved" in report.remark


@pytest.mark.long
@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public cases are not here")
def test_the_public_cases(capfd: pytest.CaptureFixture[str]) -> None:
    prove.table_of(PUBLIC)
    told = "\n".join(capfd.readouterr().out.strip().splitlines()[-2:])
    proved, of, of_kind, _, patches, clean, tests, twins, moved = map(int, re.findall(r"\d+", told))
    assert proved >= 0.9 * of, told
    assert of_kind >= 0.85 * proved, told
    assert clean == tests == patches >= 24, told
    assert twins >= 24 and moved == 0, told


def test_the_process_is_as_it_was() -> None:
    """A trial happens in a child: nothing of it is left here."""
    before = (os.getcwd(), sorted(os.environ))  # noqa: PTH109
    prove.proof_of(CASES[[c.stem for c in CASES].index("where_log")])
    assert before == (os.getcwd(), sorted(os.environ))  # noqa: PTH109
