"""The script of the folder: it builds and runs each point with trtexec, in any POSIX shell."""

import shlex
import textwrap
from collections.abc import Sequence

from precision_bisect.backends.trtexec.trtexec_flags import feed_flags
from precision_bisect.errors import printable
from precision_bisect.exports.trtexec import build_flags, decomposing, since
from precision_bisect.options import ANSWER
from precision_bisect.pipeline.on_target.exchange import (
    BUILD_LOG,
    ENGINE,
    ENGINE_BYTES,
    INPUTS,
    LAYER_INFO,
    SCRIPT,
    Subject,
    log_file,
    output_file,
    times_file,
)
from precision_bisect.runs.runfolder import MIXED_MODEL

_HEAD = f"""\
#!/bin/sh
# {{model}}: builds and runs {{count}} plans to judge, with trtexec of TensorRT 10 or 11.
#
#   sh {SCRIPT} [flags of trtexec]
#
# Written by precision-bisect. TRTEXEC=/path/to/trtexec says where the tool is. What is done is
# skipped, so this can be called again. Further flags go to every call of the tool.
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
CDPATH='' cd -- "$here" || exit 1
failed=0

# step LOG FILE COMMAND...: the command writes FILE.part, which takes its name once it is whole.
step() {{{{
    log=$1 made=$2
    shift 2
    if [ -f "$made" ]; then return 0; fi
    printf '%s\\n' "$made"
    if "$@" > "$log" 2>&1 < /dev/null && [ -f "$made.part" ] && mv -f "$made.part" "$made"; then
        return 0
    fi
    failed=$((failed + 1))
    printf '%s\\n' "  failed, see $log" >&2
    return 1
}}}}

build() {{{{
    step "$point/{BUILD_LOG}" "$point/{ENGINE}" "$tool" --onnx="$point/{MIXED_MODEL}" \\
        --stronglyTyped --saveEngine="$point/{ENGINE}.part" --skipInference \\
        --exportLayerInfo="$point/{LAYER_INFO}" --profilingVerbosity=detailed{{flags}} "$@" &&
        wc -c < "$point/{ENGINE}" > "$point/{ENGINE_BYTES}"
}}}}

"""
_RUN = f"""\
run_{{number}}() {{{{
    step "$point/{{log}}" "$point/{{output}}" "$tool" --loadEngine="$point/{ENGINE}" \\
        {{flags}} \\
        --exportOutput="$point/{{output}}.part" --exportTimes="$point/{{times}}" "$@"
}}}}

"""
_FOOT = f"""\
for point in {{points}}; do
    build "$@" || continue
{{runs}}
done

if [ "$failed" -gt 0 ]; then
    printf '%s\\n' "$failed failed, see the logs; call this again to try them once more" >&2
fi
printf '%s\\n' 'Copy this folder back, *.onnx and {ENGINE} may stay here, and call there' \\
    '  precision-bisect target RUN --read FOLDER'
[ "$failed" -eq 0 ]
"""


def write_script(subject: Subject) -> str:
    """Return the script. Raises NotWritable for shapes that cannot work."""
    export = subject.points[ANSWER]
    flags = "".join(f" {shlex.quote(flag)}" for flag in build_flags(export, subject.called))
    numbers = range(len(subject.inputs))
    told = [since(export)]
    if export.settings.plugins:
        told.append("The run had plugins: give --staticPlugins=LIB.so.")
    head = _HEAD.format(
        model=printable(subject.model.path.name),
        count=len(subject.points),
        flags=flags,
        remarks="".join(f"# {line}\n" for text in told for line in textwrap.wrap(text, 97)),
    )
    runs = (
        _RUN.format(
            number=number,
            log=log_file(number),
            output=output_file(number),
            times=times_file(number),
            flags=" ".join(map(shlex.quote, _feed_flags(subject, number))),
        )
        for number in numbers
    )
    calls = "\n".join(f'    run_{number} "$@"' for number in numbers)
    foot = _FOOT.format(points=" ".join(subject.points), runs=calls)
    return head + "".join(runs) + decomposing(export).rstrip(" ") + foot


def input_file(sample: int, number: int) -> str:
    """Return where an input of a sample lies in the folder."""
    return f"{INPUTS}/{sample}-{number}.bin"


def _feed_flags(subject: Subject, sample: int) -> Sequence[str]:
    files = [input_file(sample, number) for number in range(len(subject.model.inputs))]
    return feed_flags(subject.model, subject.inputs[sample], files, subject.called)
