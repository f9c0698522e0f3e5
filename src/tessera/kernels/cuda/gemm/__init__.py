"""Matrix products with quantized weights: packed layouts, launchers, the choice of a variant."""
