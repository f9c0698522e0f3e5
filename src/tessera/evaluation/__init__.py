"""How far a quantized model is from its reference, measured through the path that serves it."""
