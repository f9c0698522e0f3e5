"""The executable specification in torch: quantize, dequantize, progressive groups, packing."""
