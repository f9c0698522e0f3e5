"""The quantities of a plan, one function a section: each returns {id: quantity} in the order it is read."""

from dataclasses import replace

from tessera.planner import board, parallel, roofline, serving
from tessera.planner.memory import (
    active_parameters,
    bits_per_weight,
    free_for_kv,
    kv_bytes_per_sequence,
    kv_bytes_per_token,
    max_batch,
    parameter_count,
    streamed_bytes,
    weight_bytes,
)
from tessera.planner.precision import KvParams, precision_of
from tessera.planner.quantity import Quantity, quantity
from tessera.planner.setting import Setting
from tessera.planner.workload import Workload

Section = dict[str, Quantity]


def memory(setting: Setting) -> Section:
    """What is held, and how many sequences that leaves room for; of each device where tp > 1."""
    model, precision, tp = setting.model, setting.precision, setting.step.tp
    weights = weight_bytes(model, precision)
    section: Section = {"parameters": parameter_count(model), "weights": weights}
    if precision.weight_bits < 16:
        section["bits_per_weight"] = bits_per_weight(precision.linear, *_typical_matrix(setting))
    section["kv_per_token"] = kv_bytes_per_token(model, precision.kv, setting.step.kv_params)
    if tp > 1:
        weights = quantity("weights_per_device", "B", "weights / tp", weights=weights, tp=tp)
        section["weights_per_device"] = weights
        section["kv_per_token_per_device"] = _kv_per_token(setting)
    section["kv_per_sequence"] = kv_bytes_per_sequence(_kv_per_token(setting), setting.context)
    section["free_for_kv"] = free_for_kv(setting.device.memory, setting.reserve, weights)
    section["max_batch"] = max_batch(section["free_for_kv"], section["kv_per_sequence"])
    return section


def limits(setting: Setting) -> Section:
    """Where the limits cross, whatever the batch."""
    device, precision = setting.device, setting.precision
    read = _weights_read(setting, 1)
    sequence = kv_bytes_per_sequence(_kv_per_token(setting), setting.decode_context)
    ridge = roofline.ridge(device.peak(precision.compute), device.bandwidth)
    section: Section = {
        "floor_batch_1": roofline.memory_time(read, device.bandwidth, "floor_batch_1"),
        "knee": roofline.knee(read, sequence),
        "knee_context_batch_1": roofline.knee_context(read, _kv_per_token(setting), 1),
        f"ridge_{precision.compute}": ridge,
    }
    if device.has_peak("bf16") and precision.compute not in ("bf16", "fp16", "fp32"):
        section["ridge_bf16"] = roofline.ridge(device.peak("bf16"), device.bandwidth)
    bits = bits_per_weight(precision.linear, *_typical_matrix(setting))
    section["crossover_batch"] = roofline.crossover(ridge, bits).beside(
        codes_alone=roofline.crossover(ridge, precision.weight_bits)
    )
    return section


def step(setting: Setting, batch: int) -> Section:
    """A decode step of `batch` sequences: bytes, operations, time, rate, price."""
    costs, device, context = setting.step, setting.device, setting.decode_context
    read = _weights_read(setting, batch)
    sequence = kv_bytes_per_sequence(_kv_per_token(setting), context)
    moved = roofline.step_bytes(read, batch, sequence)
    section: Section = {
        "step_bytes": moved,
        "kv_share_of_step": roofline.share("kv_share_of_step", batch * float(sequence), moved),
        "memory_time": roofline.memory_time(moved, device.bandwidth),
        "gemm_time": costs.products(batch),
        "decode_operations": serving.decode_operations(
            active_parameters(setting.model), setting.model.layers, setting.model.q_size, batch, context
        ),
    }
    if costs.tp > 1:
        section["all_reduce_time"] = parallel.all_reduce_time(
            device, costs.tp, batch, setting.model.hidden, setting.model.layers
        )
    for how in ("bound", "by_operation", "predicted"):
        time = costs.decode(how, batch, context)
        suffix = time.name.removeprefix("tpot")
        rate = roofline.throughput(batch, time)
        section[time.name] = time
        section[f"throughput{suffix}"] = rate
        section[f"cost{suffix}"] = roofline.cost(rate, setting.price, costs.tp)
    return section | {f"predicted_{k}": v for k, v in costs.operations(batch, context).items()}


def other_convention(setting: Setting, batch: int | None) -> Section:
    """Capacity and step with KV parameters left out where they are counted, and the other way round.

    Empty for a cache without parameters.
    """
    other: KvParams = "none" if setting.step.kv_params == "counted" else "counted"
    changed = replace(setting, step=replace(setting.step, kv_params=other))
    if changed.step.kv_per_token == setting.step.kv_per_token:
        return {}
    held = memory(changed)
    found = {name: held[name] for name in ("kv_per_token", "kv_per_sequence", "max_batch")}
    used = batch or int(float(held["max_batch"]))
    if used:
        timed = step(changed, used)
        found |= {name: timed[name] for name in ("step_bytes", "tpot", "throughput", "cost")}
    return {f"{name}.kv_params_{other}": value for name, value in found.items()}


def dequantization(setting: Setting, batch: int) -> Section:
    """The board model, where weights have fewer bits than activations and issue ceilings are known."""
    device, precision, tp = setting.device, setting.precision, setting.step.tp
    if not precision.needs_dequantization or not device.issue_ceiling:
        return {}
    if device.dequantizes_int4:
        free = quantity("dequant_time", "s", "0").noted("the matrix units unpack 4-bit weights themselves")
        return {"dequant_time": free}
    weights = sum(p.parameters for p in setting.model.parts() if p.role in ("linear", "expert")) / tp
    read = _weights_read(setting, batch)
    floor = roofline.memory_time(read, device.bandwidth, "weight_floor")
    issue = board.issue_ceiling(device)
    naive = board.dequant_time(weights, board.SCHEMES["lecture-naive"].instructions, issue)
    section: Section = {
        "issue_ceiling": issue,
        "integer_ceiling": board.integer_ceiling(device),
        "weight_floor": floor,
        "dequant_time_naive": naive,
        "dequant_time_progressive": board.dequant_time(
            weights, board.SCHEMES["lecture-progressive"].instructions, issue
        ),
        "dequant_time": board.scheme_time(weights, setting.step.dequant, device),
        "dequant_share_of_floor": roofline.share("dequant_share_of_floor", naive, floor),
        "instructions_at_floor": board.instructions_at_floor(floor, weights, issue),
        "step_unoverlapped": board.unoverlapped(setting.step.products_bound(batch), naive),
        "step_overlapped": board.overlapped(setting.step.products_bound(batch), naive),
    }
    if precision.compute == "int8":
        w8 = replace(setting, step=replace(setting.step, precision=precision_of("w8a8-chn")))
        eight = _weights_read(w8, batch)
        section["naive_w4a8_loses_from"] = board.naive_loses_from(
            eight, naive, weights, device.peak("int8"), device.bandwidth, read
        )
        section["cached_int8_copy_floor"] = board.cached_copy(read, eight, device.bandwidth)
    return section


def prefill(setting: Setting, batch: int) -> Section:
    """The prompt: operations, time, and when the first token comes."""
    load, costs = setting.workload, setting.step
    tokens, cached = (load.computed_prompt, load.cached_prompt) if load else (setting.prompt, 0.0)
    active = active_parameters(setting.model)
    time = costs.prefill(tokens, cached, setting.prefill_efficiency)
    tpot = costs.decode("predicted", batch, setting.decode_context)
    return {
        "prefill_operations": serving.prefill_operations(
            active, setting.model.layers, setting.model.q_size, tokens, cached
        ),
        "prefill_time": time,
        "prefill_rate": quantity(
            "prefill_rate", "tok/s", "tokens / prefill_time", tokens=tokens, prefill_time=time
        ),
        "ttft": serving.time_to_first_token(time, tpot),
    }


def workload(setting: Setting, batch: int, free: Quantity) -> Section:
    """What the mix of prompt and output makes of step and prefill. Empty where no workload was named."""
    load, costs, model = setting.workload, setting.step, setting.model
    if load is None:
        return {}
    time = costs.prefill(load.computed_prompt, load.cached_prompt, setting.prefill_efficiency)
    request = _request_time(setting, batch, load, 1.0)
    active = active_parameters(model)
    operations = serving.prefill_operations(
        active, model.layers, model.q_size, load.computed_prompt, load.cached_prompt
    )
    rate = serving.request_throughput(request, load.output)
    session = serving.session_bytes(_kv_per_token(setting), load.context)
    return {
        "prefix_multiplier": serving.prefix_multiplier(load.prompt, load.prefix_hit),
        "request_gpu_time": request,
        "prefill_share": serving.prefill_share(time, request),
        "prefill_to_decode": serving.prefill_to_decode(active, operations, load.output),
        "prompt_sensitivity": serving.prompt_sensitivity(request, _request_time(setting, batch, load, 1.01)),
        "throughput_with_prefill": rate,
        "cost_with_prefill": roofline.cost(rate, setting.price, costs.tp),
        "session_bytes": session,
        "session_capacity": serving.session_capacity(free, session),
    }


def _request_time(setting: Setting, batch: int, load: Workload, stretch: float) -> Quantity:
    """Device time of a request whose prompt is `stretch` times as long."""
    costs = setting.step
    prefill = costs.prefill(
        load.computed_prompt * stretch, load.cached_prompt * stretch, setting.prefill_efficiency
    )
    tpot = costs.decode("predicted", batch, load.mean_context + load.prompt * (stretch - 1))
    return serving.request_gpu_time(prefill, load.output, tpot, batch)


def _typical_matrix(setting: Setting) -> tuple[int, int]:
    """Rows and columns of the model's first linear layer."""
    part = next(p for p in setting.model.parts() if p.role == "linear")
    return part.rows, part.columns


def _weights_read(setting: Setting, batch: float) -> Quantity:
    """Of each device."""
    return streamed_bytes(setting.model, setting.precision, batch, setting.step.tp)


def _kv_per_token(setting: Setting) -> Quantity:
    """Of each device."""
    costs = setting.step
    token = kv_bytes_per_token(setting.model, setting.precision.kv, costs.kv_params)
    if costs.tp == 1:
        return token
    share = parallel.kv_share(setting.model, costs.tp)
    return quantity(token.name, "B", "kv_per_token * share", kv_per_token=token, share=share)
