"""`judge.sh`: builds and runs each point with trtexec, in any POSIX shell.

Nothing in it is called by a name of the model but layers, which are quoted for the shell.
"""

import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from precision_bisect.backends.backend_plugin import sample_shapes
from precision_bisect.backends.tensorrt.profiles import refuse_fixed_batch
from precision_bisect.backends.trtexec import trtexec_flags as flags
from precision_bisect.errors import printable
from precision_bisect.exports.trtexec import KNOWS, READ_OPTIONS, build_flags, decomposing, since
from precision_bisect.graphs.batching import stacked
from precision_bisect.machine.process_ends import SHELL
from precision_bisect.pipeline.on_target.exchange import Subject
from precision_bisect.pipeline.on_target.own_comparison import OwnComparison
from precision_bisect.protocols import Sample
from precision_bisect.runs.results.on_target import ANSWER
from precision_bisect.runs.runfolder import MIXED_MODEL, TIMING_CACHE

SCRIPT, INPUTS, REFERENCES = "judge.sh", "inputs", "references"
ENGINE, ENGINE_BYTES = "model.engine", "engine-bytes.txt"
BUILD_LOG, RUN_LOG = "build.log", "run-{}.log"
BATCH = "batch"
"""In place of a sample's number: what is timed at another batch, and not compared."""
SHARED_MODEL = "model.onnx"
"""The model of which weak plans name layers, once for all of them."""
_OWN_CACHE = "cache.part"
_TYPINGS = {"strong": "TensorRT 10 or 11", "weak": "TensorRT 8.4 to 10 (JetPack 5 and 6)"}
_HEAD = f"""\
#!/bin/sh
# {{model}}: builds and runs {{count}} plans to judge, with trtexec of {{versions}}.
#
#   sh {SCRIPT} [flags of trtexec]
#
# Written by precision-bisect. TRTEXEC=/path/to/trtexec says where the tool is. What is done is
# skipped, so this can be called again. Further flags go to every call of the tool, which is made
# in the folder of a plan: write paths in them from the root. All builds share {TIMING_CACHE}.
{{remarks}}set -u
case $0 in */*) here=${{{{0%/*}}}} ;; *) here=. ;; esac
tool=${{{{TRTEXEC:-trtexec}}}}
case $tool in
/*) ;;
*/*) tool=$PWD/$tool ;;
esac
command -v "$tool" > /dev/null 2>&1 || {{{{
    printf '%s\\n' 'no trtexec; say TRTEXEC=/path/to/trtexec' >&2
    exit 1
}}}}
{{options}}
{{refusal}}
compares={{compares}}
cache=--timingCacheFile={_OWN_CACHE}
for flag do
    case $flag in --timingCacheFile=*) cache= ;; esac
done
CDPATH=''
cd -- "$here" || exit 1
failed=0

# step LOG FLAG FILE COMMAND...: with the flag the command writes FILE.part, which takes its name
# once it is whole.
step() {{{{
    log=$1 flag=$2 made=$3
    shift 3
    if [ -f "$made" ]; then return 0; fi
    printf '%s\\n' "$point/$made"
    if {{{{ "$@" "$flag=$made.part" > "$log" 2>&1 < /dev/null || ended $? "$log" ||
        over "$log"; }}}} &&
        [ -f "$made.part" ] && mv -f "$made.part" "$made"; then
        return 0
    fi
    failed=$((failed + 1))
    why=$(grep '\\[E\\]' "$log" | grep -v -e '--- ' -e 'While parsing' -e 'Begin node' |
        sed -e 's/.*\\[E\\] *//' -e 's/^\\[TRT\\] *//' | cut -c 1-200 | head -n 1)
    printf '%s\\n' "  failed: ${{{{why:-it does not say why}}}} ($point/$log)" >&2
    return 1
}}}}

# ended CODE LOG: what trtexec could not write itself, where a signal has ended it.
ended() {{{{
    [ "$1" -le {SHELL} ] || [ "$1" -gt {SHELL + 64} ] ||
        printf '\\n[E] %s\\n' "its process ended by SIG$(kill -l "$1")" >> "$2"
    return 1
}}}}

# over LOG: whether trtexec's own comparison failed, after which its files are written as ever.
over() {{{{
    [ -n "$compares" ] && grep -q 'Accuracy validation FAILED' "$1"
}}}}

# verdict NUMBER...: what the comparison says of a plan on all samples; to it NaN is no difference.
verdict() {{{{
    [ -n "$compares" ] || return 0
    outcome='within the limits'
    for number do
        [ -f "output-$number.json" ] || return 0
        grep -q 'Accuracy loss for tensor' "run-$number.log" || return 0
        if over "run-$number.log" ||
            grep -q '[[ ,]-\\{{{{0,1\\}}}}nan[] ,]' "output-$number.json"; then
            outcome='{{beyond}}'
        fi
    done
    printf '%s\\n' "$point by trtexec's own comparison: $outcome"
}}}}

# run NUMBER REFERENCES FLAG...: what has no references is only timed.
run() {{{{
    number=$1 references=$2
    shift 2
    if [ -n "$compares" ] && [ -n "$references" ]; then
        set -- "--loadRefOutputs=$references" {{limits}} "$@"
    fi
    step "run-$number.log" {flags.EXPORT_OUTPUT} "output-$number.json" "$tool" "$@"
}}}}

# The cache takes the name that all read once a build is done.
build() {{{{
    {{types}}
    if [ -f {ENGINE} ]; then return 0; fi
    if [ -f ../{TIMING_CACHE} ]; then cp -f ../{TIMING_CACHE} {_OWN_CACHE}; fi
    step {BUILD_LOG} {flags.SAVE_ENGINE} {ENGINE} "$tool" {{build}} $cache "$@"
    built=$?
    if [ -f {_OWN_CACHE} ]; then
        if [ $built -eq 0 ]; then mv -f {_OWN_CACHE} ../{TIMING_CACHE}; else rm -f {_OWN_CACHE}; fi
    fi
    return $built
}}}}

"""
_LOOP = f"""\
for point in {{points}}; do
    cd -- "$point" || exit 1
    if build "$@"; then
        wc -c < {ENGINE} > {ENGINE_BYTES}
        {{runs}}
        verdict {{numbers}}
    fi
    cd ..
done

if [ "$failed" -gt 0 ]; then
    printf '%s\\n' "$failed failed, see the logs; call this again to try them once more" >&2
fi
printf '%s\\n' 'Copy this folder back, *.onnx and {ENGINE} may stay here, and call there' \\
    '  precision-bisect target RUN --read FOLDER'
[ "$failed" -eq 0 ]
"""
_NO_STRONG = """\
if ! knows --stronglyTyped && knows --layerPrecisions; then
    printf '%s\\n' "$tool$version has no strong typing, and these plans need it: write the folder \
by --typing weak" >&2
    exit 1
fi"""
_NO_WEAK = """\
for flag in {needs}; do
    if knows --onnx && ! knows "$flag"; then
        printf '%s\\n' "$tool$version has no $flag, which these plans need: write the folder by \
--typing strong" >&2
        exit 1
    fi
done
# 8.5 has another word for it.
only=--skipInference
if knows --buildOnly && ! knows "$only"; then only=--buildOnly; fi"""


def write_script(subject: Subject, comparison: OwnComparison | None) -> str:
    """Return the script.

    Raises NotWritable for shapes that cannot work, UsageError for those that leave out a sample.
    """
    export, model = subject.points[ANSWER], subject.model
    refuse_fixed_batch(model.inputs, subject.case.options.engine)
    # Refuses here what trtexec would refuse on the board, after it was copied.
    flags.open_ranges(model, export.settings, sample_shapes(model, subject.inputs))
    remarks = [since(export)]
    if export.settings.plugins:
        remarks.append("The run had plugins: give --staticPlugins=LIB.so, or --plugins to 8.5.")
    common = build_flags(export, subject.called)
    if subject.weak is None:
        refusal = _NO_STRONG
        build = shlex.join(flags.build_call(MIXED_MODEL, (*flags.STRONG, *common)))
    else:
        by_name = (flag for point in subject.weak.values() for flag in point)
        needs = dict.fromkeys(["--layerPrecisions", *(f.partition("=")[0] for f in by_name)])
        refusal = _NO_WEAK.format(needs=" ".join(needs))
        build = shlex.join(flags.build_call(f"../{SHARED_MODEL}", common)) + " $only"
    head = _HEAD.format(
        model=printable(model.path.name),
        count=len(subject.points),
        versions=_TYPINGS[subject.typing],
        options=KNOWS + textwrap.dedent(f"    {READ_OPTIONS}"),
        remarks="".join(f"# {line}\n" for text in remarks for line in textwrap.wrap(text, 97)),
        refusal=refusal,
        compares="$(knows --loadRefOutputs && echo yes)" if comparison else "",
        beyond=comparison.beyond if comparison else "",
        limits=shlex.join(comparison.flags) if comparison else "",
        types="\n    ".join(["case $point in", *_cases(subject, common), "esac"]),
        build=build,
    )
    loop = _LOOP.format(
        points=" ".join(subject.points),
        runs="\n        ".join(_runs(subject)),
        numbers=" ".join(map(str, range(len(subject.inputs)))),
    )
    return head + decomposing(export).rstrip(" ") + loop


def _cases(subject: Subject, common: Sequence[str]) -> Iterator[str]:
    """Yield what adds the flags of each point that not all builds have: types, and no TF32."""
    for name, export in subject.points.items():
        own = [flag for flag in build_flags(export, subject.called) if flag not in common]
        own += (subject.weak or {}).get(name, ())
        if own:
            yield f'{name}) set -- {shlex.join(own)} "$@" ;;'


def _runs(subject: Subject) -> Sequence[str]:
    """Return a call of `run` for each sample, and for the batch that is timed."""
    model, calls = subject.model, []
    for number, feed in timed_runs(subject).items():
        files = [f"../{array_file(INPUTS, number, place)}" for place in range(len(model.inputs))]
        call = flags.run_call(model, subject.called, ENGINE, feed, files, number)
        references = ",".join(
            f"{subject.called[spec.name]}:../{array_file(REFERENCES, number, place)}"
            for place, spec in enumerate(model.outputs)
            if number != BATCH
        )
        calls.append(f'run {number} {shlex.quote(references)} {shlex.join(call)} "$@"')
    return calls


def timed_runs(subject: Subject) -> Mapping[int | str, Sample]:
    """Return the samples by number, and what is timed at another batch, if that is asked for.

    Raises CannotBatchError where the samples make no such batch.
    """
    runs: dict[int | str, Sample] = dict(enumerate(subject.inputs))
    batch = subject.time_batch
    return runs if batch is None else {**runs, BATCH: stacked(subject.inputs, batch)}


def array_file(folder: str, sample: int | str, number: int) -> str:
    """Return where an input or a reference of a sample lies in the folder."""
    return f"{folder}/{sample}-{number}.bin"
