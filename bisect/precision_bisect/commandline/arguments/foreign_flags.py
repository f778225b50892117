"""Flags of trtexec, Polygraphy, AutoCast, onnxconverter-common, Olive, and what they are here."""

import itertools
from collections.abc import Collection, Mapping, Sequence

from precision_bisect.options import DEFAULT_LOW
from precision_bisect.precisions import LOW_NAMES, type_name

_TRT = "--trt-"
# What is written here for flags of others, by what is written.
_ANSWERS: Mapping[str, str] = {
    "the model without a flag": "--onnx --onnx_path --model --model_path --model_name_or_path "
    "--input_model --source_model_path",
    # Samples, and what is compared with what.
    "--inputs PATH": "--calibration_data --data --dataset --data_dir --data_name --images "
    "--input_path --input_feed",
    "--inputs NAME:FILE.bin": "--loadInputs",
    "--inputs FILE.json": "--load-inputs --load-input-data",
    "--inputs SCRIPT.py with load_data()": "--data-loader-script",
    "--reference FILE.json": "--load-outputs --load-results",
    "--range NAME=0:999": "--val-range --float-min --float-max --int-min --int-max",
    "--input-shapes NAME:1x3x224x224": "--shapes",
    "--input-shapes NAME:8x3x224x224": "--batch-size --batch",
    "--image-size WIDTHxHEIGHT": "--imgsz --img --img-size --imgsize",
    "--metric max, mean or quantile": "--check-error-stat --error-metric",
    "--tol T": "--threshold --accuracy --max_abs_diff --abs --rel",
    "--check SCRIPT.py:FUNCTION": "--validate_fn --customized_validate_func --compare-func-script",
    # What is searched, and how.
    "--keep PATTERN": "--nodes_to_exclude --node_block_list --exclude --exclude_layers "
    "--fp32_layers --nodes-to-exclude",
    "--keep OPERATOR": "--op_types_to_exclude --op_block_list",
    "--low-only PATTERN": "--nodes_to_include",
    "--low-only OPERATOR": "--op_types_to_include",
    "--low fp16 or bf16": "--low_precision_type --to-fp16 --convert_to_fp16",
    "--high fp32 or bf16": "--high_precision_type",
    "--low int8 or fp8, the lowest here": "--int4 --fp4 --nvfp4",
    "--ladder int8,fp16,fp32": "--best",
    "--calibration minmax, percentile or entropy": "--calib --calibration-cache --calibrate",
    "--strategy NAME": "--mode",
    "--synthetic N": "--samples --num-samples --num_samples --max_samples",
    # Engines.
    "--tf32 off": "--noTF32 --no-tf32",
    "--typing strong": "--stronglyTyped --strongly-typed",
    "--typing weak, which constrains kept layers by itself": "--precisionConstraints "
    "--precision-constraints --layerPrecisions --layer-precisions --layerOutputTypes "
    "--strict-types --strictTypes",
    "--min-shapes NAME:1x3x224x224": "--minShapes",
    "--opt-shapes NAME:1x3x224x224": "--optShapes",
    "--max-shapes NAME:1x3x224x224": "--maxShapes",
    "--workspace MIB": "--memPoolSize --pool-limit",
    "--builder-optimization-level N": "--builderOptimizationLevel",
    "--plugins LIB.so": "--staticPlugins --dynamicPlugins --trt_plugins",
    "--trt-config-postprocess-script SCRIPT.py, which changes the builder's configuration": (
        "--refit --refittable --stripWeights --strip-plan --versionCompatible "
        "--version-compatible --hardwareCompatibilityLevel --hardware-compatibility-level "
        "--useDLACore --use-dla --allowGPUFallback --allow-gpu-fallback --tacticSources "
        "--tactic-sources --sparsity --sparse-weights --maxAuxStreams --preview "
        "--preview-features --allowWeightStreaming --weight-streaming --runtimePlatform"
    ),
    "--io-types fp16": "--inputIOFormats --outputIOFormats --directIO --direct-io "
    "--force_fp16_inputs --io-formats",
    "--backend tensorrt": "--trt",
    "--backend onnxruntime": "--onnxrt --cuda --use_gpu",
    "--backend NAME": "--providers --provider --execution_provider",
    "--workers gpu:N": "--device --gpu",
    # Files and screens.
    "--keep-engines": "--saveEngine --save-engine",
    "--out DIR": "-o --output --output_path --out-dir --output_dir",
    "-v": "--verbose --log_level --log-level --debug",
    "-q": "--silent",
    "--help-all": "--help_all --helpAll",
}
# Flags of others that have none here, by the reason.
_NEEDLESS: Mapping[str, str] = {
    "each run folder has a timing cache of its own": "--timingCacheFile --timing-cache "
    "--load-timing-cache --save-timing-cache --save-tactics --load-tactics --tactic-replay",
    "inputs and outputs keep their types but for --io-types fp16": "--keep_io_types",
    "what overflows is tried": "--data_max --init_max --init_conversion_max_bytes "
    "--max_depth_of_reduction --min_positive_val --max_finite_val",
    "each plan is timed in turns with FP32": "--duration --iterations --iters --warmUp --warm-up "
    "--avgRuns --useCudaGraph --useSpinWait --streams --infStreams --sleepTime --idleTime "
    "--noDataTransfers --skipInference --separateProfileRun",
    "the outputs of the model are judged": "--trt-outputs --onnx-outputs --mark",
    "every trial is judged, and the exit code tells": "--validate --fail-fast",
    "plans are built from the model": "--loadEngine --load-engine --buildOnly --explicitBatch",
    "the run folder has samples and FP32 outputs in Polygraphy's form": "--save-inputs "
    "--save-outputs --save-input-data --save-results",
    "result.json and the logs of the run folder have it": "--exportTimes --exportOutput "
    "--dumpOutput --dumpProfile --exportProfile",
    "precision-bisect verify RUN shows the engine's layers": "--dumpLayerInfo --exportLayerInfo "
    "--profilingVerbosity --profiling-verbosity",
    "the opset is raised where a type needs it": "--opset --target_opset",
    "types and shapes are inferred": "--use_standalone_type_inference --disable_shape_infer",
    "from 2 GiB on weights lie beside the file": "--use-external-data-format "
    "--use_external_data_format --save_as_external_data",
}
_OURS = {flag: answer for answer, flags in _ANSWERS.items() for flag in flags.split()}
_LEFT_OUT = {flag: reason for reason, flags in _NEEDLESS.items() for flag in flags.split()}


def answers_to(arguments: Sequence[str], flags: Collection[str]) -> tuple[Sequence[str], str]:
    """Return the arguments that are flags of other tools, and what to write instead.

    Nothing is returned where the command has no flags of these meanings.
    """
    answers: dict[str, str] = {}
    for argument in itertools.takewhile("--".__ne__, arguments):
        word = argument.partition("=")[0]
        if word in flags:
            continue
        if reason := _LEFT_OUT.get(word):
            answers[argument] = f"leave {word} out: {reason}"
        elif (ours := _ours(word, flags)) and (ours[0] != "-" or ours.split()[0] in flags):
            answers[argument] = ours
    left_out = [answer for word, answer in answers.items() if word.partition("=")[0] in _LEFT_OUT]
    written = [answer for answer in dict.fromkeys(answers.values()) if answer not in left_out]
    advice = [f"write {', '.join(written)}"] * bool(written) + left_out
    return list(answers), "; ".join(advice)


def _ours(word: str, flags: Collection[str]) -> str:
    if word.startswith(_TRT) and word not in _OURS:
        ours = f"--{word.removeprefix(_TRT)}"
        return ours if ours in flags else ""
    if type_name(word.lstrip("-")) in LOW_NAMES and word.startswith("--"):
        return f"--low {type_name(word.lstrip('-'))} ({DEFAULT_LOW} is the default)"
    return _OURS.get(word, "")
