"""INT8 and FP8 by QuantizeLinear and DequantizeLinear: scales, calibration, rounding."""
