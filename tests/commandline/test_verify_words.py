"""What `verify` makes of its findings: verdict, exit code, whose fault it is."""

from dataclasses import replace

from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.runs.results.verification import (
    Verification,
    failure_of,
    fault_of,
)
from precision_bisect.trial import Honour, LayerHonour, Outcome, TrialStatus


def test_what_is_made_of_findings(rtx: Flavour) -> None:
    """Names are printed as text; a layer that nobody looked at is not observable."""
    seen = LayerHonour(layer="a\x1b[31m", honoured=Honour.DEMOTED, evidence="weights are fp16")
    found = Verification(
        backend=rtx.name, remark="", kept=["a\x1b[31m"], layers=(seen,), notes=("careful",)
    )
    assert (1, False) == (found.exit_code, found.honoured) and "Demoted: " in found.verdict
    assert "\x1b" not in found.to_text(verbose=True)
    assert " remarks: careful" in found.to_text()
    held = replace(seen, honoured=Honour.HONOURED)
    fine = replace(found, layers=(held,))
    assert "weights are" in fine.to_text(verbose=True)
    assert "weights are" not in fine.to_text()
    blind = replace(found, layers=())
    assert (5, None) == (blind.exit_code, blind.honoured)
    assert ["Honoured", "Not observable"] == [e.verdict.split(":")[0] for e in (fine, blind)]
    assert 0 == replace(blind, kept=[]).exit_code
    failed = Outcome(status=TrialStatus.BUILD_FAILED, message="no tactic.")
    late = Outcome(status=TrialStatus.TIMED_OUT, message="took longer")
    for plain, code, fault in ((None, 1, "plan"), (failed, 4, "model"), (late, 4, "unclear")):
        ended = replace(blind, failure=failure_of(failed), fp32_failure=failure_of(plain))
        ended = replace(ended, fault=fault_of(failed, plain))
        assert (code, fault) == (ended.exit_code, ended.fault) and "No engine" in ended.verdict
    ended = replace(blind, failure=failure_of(late), fault=fault_of(late, None))
    assert (4, "unclear") == (ended.exit_code, ended.fault)
