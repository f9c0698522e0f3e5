"""What a plan says beside the recipe it was made for: group sizes, sparsity, speculation, W4A4.

Each returns {id: quantity} as the sections of a plan do.
"""

from dataclasses import replace
from math import log2

from tessera.planner import roofline, sparsity, speculative
from tessera.planner.errors import PlanError
from tessera.planner.memory import bits_per_weight, streamed_bytes, weight_bytes
from tessera.planner.precision import Precision, precision_of, with_weights
from tessera.planner.quantity import Quantity, quantity
from tessera.planner.read_model import Source, shape_of
from tessera.planner.setting import Setting
from tessera.planner.step import StepModel
from tessera.spec import Pattern, Recipe, SpecError, affine_zero

Section = dict[str, Quantity]


def group_tax(setting: Setting, groups: tuple[int, ...] = (32, 64, 128, 256)) -> Section:
    """Bits of a 4-bit weight and the floor at batch 1 by group size: an fp16 scale and a 4-bit zero a group.

    Group sizes that the model's shapes forbid are left out.
    """
    section: Section = {}
    for group in groups:
        precision = with_weights(setting.precision, affine_zero(4, Pattern.blocks(1, group)))
        try:
            read = streamed_bytes(setting.model, precision, 1, setting.step.tp)
        except SpecError:
            continue
        name = f"floor_batch_1_g{group}"
        section[f"bits_per_weight_g{group}"] = bits_per_weight(precision.linear)
        section[name] = roofline.memory_time(read, setting.device.bandwidth, name)
    return section


def sparse(setting: Setting, n: int = 2, m: int = 4) -> Section:
    """N:M sparsity of 16-bit weights against dense int4, and stacked on it by both ways of counting.

    Raises PlanError where N is not between 0 and M.
    """
    device, tp = setting.device, setting.step.tp
    full = streamed_bytes(setting.model, precision_of("bf16"), 1, tp)
    dense = with_weights(setting.precision, precision_of("w4a16-g128").linear)
    int4 = streamed_bytes(setting.model, dense, 1, tp)
    ratio = sparsity.kept_ratio(n, m)
    weights = sum(p.parameters for p in setting.model.parts() if p.role in ("linear", "expert")) / tp
    stored = sparsity.sparse_int4_bytes(weights, int4, n, m)
    lecture = sparsity.sparse_bytes(int4, ratio)

    def floor(name: str, moved: Quantity) -> Quantity:
        return roofline.memory_time(moved, device.bandwidth, name)

    return {
        "sparse_ratio": ratio,
        "sparse_gain": sparsity.sparse_gain(ratio),
        "floor_sparse_16_bit": floor("floor_sparse_16_bit", sparsity.sparse_bytes(full, ratio)),
        "floor_dense_int4": floor("floor_dense_int4", int4),
        "floor_sparse_int4": floor("floor_sparse_int4", stored).noted("indices of 4-bit survivors counted"),
        "floor_sparse_int4_lecture": floor("floor_sparse_int4_lecture", lecture).noted(
            "the 16-bit ratio applied to int4, as the lecture does"
        ),
    }


def speculate(
    setting: Setting,
    batch: int,
    draft: Source,
    recipe: str | Recipe | Precision = "qoq-g128",
    acceptance: float = 0.7,
    drafted: int = 4,
) -> Section:
    """Speculative decoding with a draft model by a recipe of its own: the multiplier on top of quantization.

    A verifying step has `drafted` + 1 tokens of every sequence in its products and reads the cache once.
    Raises PlanError for an acceptance outside 0..1 or a draft that is not smaller than the model.
    """
    model = shape_of(draft)
    if model.parameters >= setting.model.parameters:
        raise PlanError(
            f"the draft model {model.name} has {model.parameters:.3g} parameters, {setting.model.name} has "
            f"{setting.model.parameters:.3g}: a draft must be smaller",
            param="draft",
        )
    tokens = speculative.tokens_per_pass(acceptance, drafted)
    context = setting.decode_context
    plain = setting.step.decode("by_operation", batch, context)
    extra = (
        setting.step.products_bound(batch * (drafted + 1)).value - setting.step.products_bound(batch).value
    )
    verify = quantity("verify_time", "s", "step + more_products", step=plain, more_products=extra)
    guess = StepModel(model, setting.device, precision_of(recipe)).decode("by_operation", batch, context)
    tpot = speculative.speculative_tpot(tokens, verify, guess, drafted)
    return {
        "tokens_per_pass": tokens,
        "draft_step": replace(guess, name="draft_step"),
        "verify_time": verify,
        "speculative_tpot": tpot,
        "speculative_gain": speculative.speculative_gain(plain, tpot),
    }


def w4a4(setting: Setting, batch: int) -> Section:
    """What 4-bit activations would need and bring: peak, bytes, rotations, quantizers on the critical path.

    The rotation is a fast Hadamard transform of every linear layer's input, on the vector units (fp32 peak).
    """
    device, model = setting.device, setting.model
    inputs = sum(part.columns * part.count for part in model.parts() if part.role == "linear")
    log = log2(model.hidden)
    kind = next((k for k in ("int4", "fp4") if device.has_peak(k)), None)
    base = device.peak("int8") if device.has_peak("int8") else device.peak("bf16")
    section: Section = {
        "peak_gain": quantity(
            "peak_gain", "x", "four / eight", four=device.peak(kind) if kind else base, eight=base
        ).noted(f"{kind} products" if kind else "no 4-bit products on this device: int4 runs as int8"),
        "activation_bytes_saved": quantity(
            "activation_bytes_saved", "B", "batch * inputs / 2", batch=batch, inputs=inputs
        ),
        "quantizer_traffic": quantity(
            "quantizer_traffic", "s", "batch * inputs * (2 + 0.5) / bandwidth",
            batch=batch, inputs=inputs, bandwidth=device.bandwidth,
        ),
    }  # fmt: skip
    section["activation_bytes_share"] = roofline.share(
        "activation_bytes_share",
        section["activation_bytes_saved"],
        setting.step.kv_per_token * batch * setting.decode_context
        + float(weight_bytes(model, setting.precision)),
    )
    if device.has_peak("fp32"):
        section["rotation_time"] = quantity(
            "rotation_time", "s", "batch * inputs * log2_hidden / fp32_peak",
            batch=batch, inputs=inputs, log2_hidden=log, fp32_peak=device.peak("fp32"),
        )  # fmt: skip
    return section


def with_tensor_core_dequantization(setting: Setting) -> Setting:
    """The same on hardware whose matrix units take 4-bit weights themselves: no unpacking instructions."""
    return replace(setting, step=replace(setting.step, device=replace(setting.device, dequantizes_int4=True)))
