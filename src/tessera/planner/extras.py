"""What a plan says beside the recipe it was made for: group sizes, sparsity, speculation, W4A4.

Each returns {id: quantity} as the sections of a plan do.
"""

from math import log2

from tessera.planner import roofline, sparsity, speculative
from tessera.planner.errors import PlanError
from tessera.planner.levers import group_of
from tessera.planner.memory import (
    bits_per_weight,
    kv_bytes_per_sequence,
    kv_bytes_per_token,
    streamed_bytes,
    weight_bytes,
)
from tessera.planner.precision import precision_of, with_weights
from tessera.planner.quantity import Quantity, quantity
from tessera.planner.read_model import shape_of
from tessera.planner.setting import Draft, Setting
from tessera.planner.step import StepModel
from tessera.spec import Pattern, SpecError, affine_zero

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
    dense = with_weights(setting.precision, precision_of(f"w4a16-{group_of(setting.model, tp)}").linear)
    int4 = streamed_bytes(setting.model, dense, 1, tp)
    ratio = sparsity.kept_ratio(n, m)
    weights = sum(p.parameters for p in setting.model.parts() if p.role in ("linear", "expert")) / tp
    floors = {
        "16_bit": sparsity.sparse_bytes(full, ratio),
        "int4": sparsity.sparse_int4_bytes(weights, int4, n, m),
        "int4_lecture": sparsity.sparse_bytes(int4, ratio).noted("the ratio of 16 bits, as the lecture does"),
    }
    section = {"sparse_ratio": ratio, "sparse_gain": sparsity.sparse_gain(ratio)}
    section["floor_dense_int4"] = roofline.memory_time(int4, device.bandwidth)
    section |= {
        f"floor_sparse_{name}": roofline.memory_time(moved, device.bandwidth).noted(moved.note)
        for name, moved in floors.items()
    }
    return {f"{name}.{n}:{m}": value for name, value in section.items()}


def speculate(setting: Setting, batch: int, draft: Draft) -> Section:
    """Speculative decoding with a draft model by a recipe of its own: the multiplier on top of quantization.

    A verifying step has `drafted` + 1 tokens of every sequence in its products and reads the cache once. The
    draft's weights and cache are stated and not taken off the memory of the plan.
    Raises PlanError for an acceptance outside 0..1 or a draft that is not smaller than the model.
    """
    model = shape_of(draft.model)
    if model.parameters >= setting.model.parameters:
        raise PlanError(
            f"the draft model {model.name} has {model.parameters:.3g} parameters, {setting.model.name} has "
            f"{setting.model.parameters:.3g}: a draft must be smaller",
            param="draft",
        )
    precision = precision_of(draft.recipe or f"qoq-{group_of(model)}")
    tokens = speculative.tokens_per_pass(draft.acceptance, draft.drafted)
    context, costs = setting.decode_context, setting.step
    plain = costs.decode("by_operation", batch, context)
    more = costs.products_bound(batch * (draft.drafted + 1)).value - costs.products_bound(batch).value
    verify = quantity("verify_time", "s", "step + more_products", step=plain, more_products=more)
    guess = StepModel(model, setting.device, precision).decode("by_operation", batch, context)
    tpot = speculative.speculative_tpot(tokens, verify, guess, draft.drafted)
    token = kv_bytes_per_token(model, precision.kv)
    return {
        "draft_weights": weight_bytes(model, precision),
        "draft_kv_per_sequence": kv_bytes_per_sequence(token, setting.context),
        "tokens_per_pass": tokens,
        "draft_step": guess,
        "verify_time": verify,
        "speculative_tpot": tpot,
        "speculative_gain": speculative.speculative_gain(plain, tpot),
    }


def w4a4(setting: Setting, batch: int) -> Section:
    """What 4-bit activations need and bring: 4-bit products (a hardware generation), quantizers on the
    critical path (kernel work), rotations against outliers (algorithm work); and how few bytes they save.

    The rotation is a fast Hadamard transform of every linear layer's input, on the vector units (fp32 peak).
    """
    device, model = setting.device, setting.model
    inputs = model.layers * (
        model.hidden + model.q_size + model.experts_per_token * (model.hidden + model.intermediate)
    )
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
