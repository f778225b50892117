"""What TensorRT 10 printed about layers of real networks, as their owners published it.

Sources: NVIDIA/TensorRT issues 4397 (10.10, A100) and 4020; a published build log of an AlexNet of
November 2024; the documentation of Torch-TensorRT. Where a source leaves a part out, so does this.
"""

CONVOLUTION = (
    "Name: /features/features.0/Conv + /features/features.1/Relu, LayerType: CaskConvolution, "
    "Inputs: [ { Name: Reformatted Input Tensor 0 to /features/features.0/Conv + "
    "/features/features.1/Relu, Location: Device, Dimensions: [1,3,224,224], "
    "Format/Datatype: Half }], Outputs: [ { Name: /features/features.1/Relu_output_0, "
    "Location: Device, Dimensions: [1,64,55,55], Format/Datatype: Half }], "
    "ParameterType: Convolution, Kernel: [11,11], PaddingMode: kEXPLICIT_ROUND_DOWN, "
    'Weights: {"Type": "Half", "Count": 23232}, Bias: {"Type": "Half", "Count": 64}, HasBias: 1, '
    "HasReLU: 1, Activation: RELU, TacticName: "
    "sm80_xmma_fprop_implicit_gemm_indexed_wo_smem_f16f16_f16f16_f16_nhwckrsc_nhwc_tilesize128x32x"
    "64_stage1_warpsize4x1x1_g1_tensor16x8x16_aligna8_alignc8, TacticValue: 0x280b0ad3c23d8442, "
    "StreamId: 0, Metadata: "
    "[ONNX Layer: /features/features.0/Conv]\x1e[ONNX Layer: /features/features.1/Relu]"
)
GEMM = (
    "Name: /classifier/classifier_6/Gemm_myl9_4, LayerType: gemm, Inputs: [ { Name: output'.1_4, "
    "Dimensions: [1,4096], Format/Datatype: Half }, { Name: __mye595_dconst, "
    "Dimensions: [4096,1000], Format/Datatype: Half }, "
    "{ Name: __mye574/classifier/classifier_6/Gemm_alpha, Dimensions: [1], "
    "Format/Datatype: Float }, { Name: __mye575/classifier/classifier_6/Gemm_beta, "
    "Dimensions: [1], Format/Datatype: Float }, "
    "{ Name: classifier_6_bias _ ONNXTRT_Broadcast_6_constantHalf, Dimensions: [1,1000], "
    "Format/Datatype: Half }], Outputs: [ { Name: output, Dimensions: [1,1000], "
    "Format/Datatype: Half }], TacticName: "
    "sm50_xmma_cublas_gemvx_f16f16_f32_f32_tn_n_int32_unit_n_launch_param4x32x32_strided_unit_"
    "stride, StreamId: 0, Metadata: [ONNX Layer: /classifier/classifier.6/Gemm]"
)
GEMM_WITHOUT_WEIGHTS = (
    "Name: /encoder/layers_0/pos_ff/output/MatMul_myl0_7, LayerType: gemm, "
    "Inputs: [ { Name: __mye54525, Dimensions: [1,40,256], Format/Datatype: Half }], "
    "Outputs: [ { Name: __myln_k_arg__bb1_30, Dimensions: [1,40,256], Format/Datatype: Half }], "
    "TacticName: sm80_xmma_gemm_f16f16_f16f16_f16_nn_n_tilesize32x32x64_stage6, StreamId: 0, "
    "Metadata: [ONNX Layer: /encoder/layers.0/pos_ff/output/MatMul]"
    "[ONNX Layer: /encoder/layers.0/pos_ff/output/Add]"
)
ATTENTION = (
    "Name: _gemm_mha_v2_myl0_59, LayerType: kgen, "
    "Inputs: [ { Name: __mye56036, Dimensions: [4,40,64], Format/Datatype: Half }, "
    "{ Name: __mye56036, Dimensions: [4,64,40], Format/Datatype: Half }, "
    "{ Name: __mye55389_7, Dimensions: [1,1,40,40], Format/Datatype: Half }], "
    "Outputs: [ { Name: __mye54525, Dimensions: [4,40,64], Format/Datatype: Half }], "
    "TacticName: _gemm_mha_v2_0x957a2fe283f77dcf35c142c1390a3e6a, StreamId: 0, "
    "Metadata: [ONNX Layer: q][ONNX Layer: scores][ONNX Layer: context]"
)
LOW_LINEAR = (
    "Name: __myl_ResMulSumAddCas_myl0_1, LayerType: kgen, Inputs: [ { Name: __mye127_dconst, "
    "Dimensions: [10,30], Format/Datatype: Half }, { Name: linear2/addmm_1_constant_0 _ linear2/"
    "addmm_1_add_broadcast_to_same_shape_lhs_broadcast_constantHalf, Dimensions: [1,30], "
    "Format/Datatype: Half }, { Name: __myln_k_arg__bb1_2, Dimensions: [1,10], "
    "Format/Datatype: Half }], Outputs: [ { Name: __myln_k_arg__bb1_3, Dimensions: [1,30], "
    "Format/Datatype: Float }], TacticName: "
    "__myl_ResMulSumAddCas_0x5a3b318b5a1c97b7d5110c0291481337, StreamId: 0, Metadata: "
)
HIGH_LINEAR = (
    "Name: __myl_MulSumAddCas_myl0_0, LayerType: kgen, Inputs: [ { Name: "
    "linear1/addmm_constant_0 _ linear1/addmm_add_broadcast_to_same_shape_lhs_broadcast_"
    "constantFloat, Dimensions: [1,10], Format/Datatype: Float }, { Name: __mye112_dconst, "
    "Dimensions: [10,10], Format/Datatype: Float }, { Name: x, Dimensions: [10,1], "
    "Format/Datatype: Float }], Outputs: [ { Name: __myln_k_arg__bb1_2, Dimensions: [1,10], "
    "Format/Datatype: Half }], TacticName: "
    "__myl_MulSumAddCas_0xacf8f5dd9be2f3e7bb09cdddeac6c936, StreamId: 0, Metadata: "
)
"""Torch-TensorRT names no ONNX nodes: tests write them behind `Metadata: `."""
NAMES_ONLY = (
    "Engine Layer Information:\n"
    "Layer(Myelin): {ForeignNode[/encoder/Unsqueeze_3 + /encoder/Unsqueeze_4.../match_model/"
    "Squeeze]}, Tactic: 0x0000000000000000, concat_ids (Int32[1,40]) -> "
    "Reformatted Output Tensor 0 (Half[1])"
)
FORMATS = {
    "Half": "fp16",
    "Row major linear FP32": "fp32",
    "Row major linear FP16 format": "fp16",
    "Row major Int8 format": "int8",
    "Channel major FP32 format where channel % 4 == 0": "fp32",
    "Channel major FP16 format where channel % 8 == 0": "fp16",
    "Two wide channel vectorized row major FP16 format": "fp16",
    "Thirty-two wide channel vectorized row major Int8 format": "int8",
    "Thirty-two wide channel vectorized row major FP32 format": "fp32",
    "N/A due to dynamic shapes": "",
}
"""Each phrase behind `Format/Datatype: `, with the type that it names."""
MOVING_KERNELS = ("__myl_MovSliSliTra_myl0_1", "__myl_ResMov_myl0_2", "__myl_ConRepTra_myl0_3")
CONVERTING_KERNELS = (
    "__myl_MulSumAddCas_myl0_0",
    "__myl_CasResCasGatRes_myl296_3",
    "__myl_CasMeaSubMulMeaAddSqrDivMulCasMulAdd_myl0_4",
    "__myl_AddCastMeanSubMulMeanAddSqrtDivMulCastMulAdd_myl0_8",
)


def message(*lines: str) -> str:
    """Return the message that these lines make in a log of TensorRT 10."""
    return "\n".join(("Layers:", *lines)) + "\n\nBindings:\ninput\noutput]"
