"""Whatever the names in a model, each export selects exactly the plan, or says why it cannot."""

import tempfile
from pathlib import Path

import onnx
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from exports_models import (
    NAFNET,
    NAFNET_KEPT,
    SHELLS,
    Parse,
    autocast_selects,
    chain,
    export_of,
    flag,
    mixed_selects,
    polygraphy_selects,
    run_script,
)
from precision_bisect.exports.write import write_exports
from precision_bisect.graphs.load import load_model
from precision_bisect.runs.runfolder import (
    AUTOCAST,
    LAYER_PRECISIONS,
    MIXED_MODEL,
    POLYGRAPHY_SCRIPT,
    TORCH_AUTOCAST,
    RunFolder,
)
from trtexec_oracle import NAMES, trtexec_parse, trtexec_selects


@given(names=NAMES, data=st.data())
@examples(15)
def test_each_export_selects_exactly_the_plan(
    parse_rtx: Parse, names: list[str], data: st.DataObject
) -> None:
    """Files that are written agree with the plan; the others are absent and have a reason."""
    names += data.draw(st.lists(st.sampled_from(["", *names]), max_size=2))
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "model.onnx"
        onnx.save(chain(names), path)
        layers = list(load_model(path).table.names)
        kept = data.draw(st.lists(st.sampled_from(layers), unique=True))
        folder = RunFolder(Path(place) / "run")
        reasons = write_exports(folder, export_of(path, kept))
        for file, reason in reasons.items():
            assert (folder.path / file).exists() == (reason is None), reason
        assert set(kept) == mixed_selects(folder.path / MIXED_MODEL, layers)
        if reasons[AUTOCAST] is None:
            text = (folder.path / AUTOCAST).read_text("ascii")
            assert set(kept) == autocast_selects(text, names)
        if reasons[POLYGRAPHY_SCRIPT] is None:
            script, network = folder.path / POLYGRAPHY_SCRIPT, parse_rtx(chain(names))
            assert set(kept) == polygraphy_selects(script, network)
        if reasons[LAYER_PRECISIONS] is None:
            text = (folder.path / LAYER_PRECISIONS).read_text()
            assert set(kept) == trtexec_selects(f"--layerPrecisions={text}", names)
        ran = run_script(folder.path, "weak", data.draw(st.sampled_from(SHELLS)))
        if ran.code == 0 and kept:
            assert set(kept) == trtexec_selects(flag(ran, "--layerPrecisions"), names)
            types = trtexec_parse(flag(ran, "--layerOutputTypes"), "--layerOutputTypes")
            assert dict.fromkeys(kept, "fp32") == types
        else:
            assert (kept == []) == (ran.code == 0)
            assert (ran.said == "") == (kept == [])


def test_all_exports_of_the_example_agree(parse_rtx: Parse, tmp_path: Path) -> None:
    """On the example's 14 kept layers every export selects the same of its 300."""
    folder = RunFolder(tmp_path)
    export = export_of(NAFNET, NAFNET_KEPT)
    reasons = write_exports(folder, export)
    assert {TORCH_AUTOCAST} == {*filter(reasons.get, reasons)}
    names = list(export.model.table.names)
    weak = run_script(tmp_path, "weak", SHELLS[0])
    selected = [
        trtexec_selects(f"--layerPrecisions={(tmp_path / LAYER_PRECISIONS).read_text()}", names),
        trtexec_selects(flag(weak, "--layerPrecisions"), names),
        set(trtexec_parse(flag(weak, "--layerOutputTypes"), "--layerOutputTypes")),
        autocast_selects((tmp_path / AUTOCAST).read_text(), names),
        polygraphy_selects(tmp_path / POLYGRAPHY_SCRIPT, parse_rtx(onnx.load(NAFNET))),
        mixed_selects(tmp_path / MIXED_MODEL, names),
    ]
    assert [set(NAFNET_KEPT)] * len(selected) == selected
    strong = parse_rtx(onnx.load(tmp_path / MIXED_MODEL))
    types = {
        layer.metadata: layer.get_output(0).dtype.name
        for layer in map(strong.get_layer, range(strong.num_layers))
    }
    high = {name for name in names if types[f"[ONNX Layer: {name}]"] == "FLOAT"}
    assert set(NAFNET_KEPT) == high
