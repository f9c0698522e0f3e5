"""Devices by name, custom devices, measured overrides."""

import json
from dataclasses import asdict, replace

import pytest

from tessera.hardware import (
    FAMILIES,
    GPUS,
    KERNEL_SECONDS,
    KINDS,
    CustomDeviceError,
    HardwareFileError,
    Measured,
    MissingPeakError,
    UnknownDeviceError,
    apply_measured,
    device_of_product,
    find_device,
    kernel_costs,
    read_kernel_costs,
    read_measured,
    relative_cost,
    save_measured,
    shipped_measurements,
)


@pytest.fixture(autouse=True)
def no_measurements_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("TESSERA_HARDWARE", str(tmp_path / "hardware.json"))


NAMED = (
    "v100",
    "a100-40gb",
    "a100-80gb",
    "a10",
    "l4",
    "l40s",
    "rtx4090",
    "h100-pcie",
    "h100-sxm",
    "h200",
    "b200",
)


@pytest.mark.parametrize("name", NAMED)
def test_every_named_gpu_has_all_its_limits_and_their_source(name):
    device = find_device(f"{name}:datasheet")
    assert device.memory > 1e9
    assert device.bandwidth > 1e11
    assert device.peak("fp16") >= 2 * device.peak("fp32")
    assert device.issue_ceiling == 2 * device.integer_ceiling > 0
    assert device.link > 0
    assert "data sheet" in device.source("bandwidth") or "white paper" in device.source("bandwidth")


def test_int8_is_twice_the_16_bit_peak_or_more_and_volta_has_none():
    for name in NAMED:
        device = GPUS[name]
        if name == "v100":
            assert not device.has_peak("int8")
        else:
            assert device.peak("int8") >= 1.99 * device.peak("bf16")


def test_volta_says_what_it_has_when_int8_is_asked_for():
    with pytest.raises(MissingPeakError, match=r"v100 has no int8 .* it has fp16, fp32"):
        GPUS["v100"].peak("int8")


@pytest.mark.parametrize("alias, name", [("h100", "h100-sxm"), ("A100", "a100-80gb"), ("4090", "rtx4090")])
def test_aliases(alias, name):
    assert find_device(alias).name == name


@pytest.mark.parametrize(
    "typo, near", [("h10", "h100"), ("rtx 4090", "rtx4090"), ("l40", "l40s"), ("a100-80", "a100-80gb")]
)
def test_unknown_names_get_the_nearest(typo, near):
    with pytest.raises(UnknownDeviceError, match=rf"no device .*nearest: .*{near}.*known: "):
        find_device(typo)


def test_nearest_names_are_offered_once(monkeypatch, tmp_path):
    monkeypatch.setenv("TESSERA_HARDWARE", str(tmp_path / "none.json"))
    with pytest.raises(UnknownDeviceError) as error:
        find_device("h20")
    assert str(error.value).count("h200,") == 2  # once among the nearest, once among all


def test_custom_device_in_data_sheet_units():
    device = find_device("custom:memory=80,bandwidth=3350,int8=1979,bf16=989,sms=132,clock=1.98,name=mine")
    h100 = GPUS["h100-sxm"]
    assert (device.name, device.memory, device.bandwidth) == ("mine", h100.memory, h100.bandwidth)
    assert device.issue_ceiling == pytest.approx(h100.issue_ceiling)
    assert device.peak("int8") == h100.peak("int8")
    assert device.source("bandwidth") == "given by hand"


def test_custom_device_from_a_known_one_keeps_what_is_not_given():
    device = find_device("custom:from=h100,memory=96,dequantizes_int4=1")
    assert device == replace(
        GPUS["h100-sxm"], name="custom (h100-sxm)", memory=96e9, dequantizes_int4=True, sources=device.sources
    )
    assert device.source("memory") == "given by hand"
    assert device.source("bandwidth") == GPUS["h100-sxm"].source("bandwidth")


@pytest.mark.parametrize(
    "text, message",
    [
        ("custom:", r"lacks memory, bandwidth, a peak"),
        ("custom:memory=80,bf16=989", r"lacks bandwidth"),
        ("custom:memory=80,bandwidth=1000", r"lacks a peak \(fp32, fp16"),
        ("custom:memory=80,memory=90", "its key repeats"),
        ("custom:memory", "not key=value"),
        ("custom:from=h100,speed=9", r"unknown key speed: known are name, from"),
        ("custom:from=h100,memory=0", "memory is '0': a positive number"),
        ("custom:from=h100,bandwidth=-1", "bandwidth is '-1'"),
        ("custom:from=h100,clock=nan", "clock is 'nan'"),
        ("custom:from=h100,sms=many", "sms is 'many'"),
        ("custom:from=h100,dequantizes_int4=yes", "dequantizes_int4 is 'yes': 0 or 1"),
    ],
)
def test_bad_custom_devices(text, message):
    with pytest.raises(CustomDeviceError, match=message):
        find_device(text)


def test_custom_from_an_unknown_device_offers_names():
    with pytest.raises(UnknownDeviceError, match="nearest: h200"):
        find_device("custom:from=h20,memory=96")


MEASURED = Measured(
    "gpu", "doctor on NVIDIA L4", "2026-11-30", memory=23e9, bandwidth=2.7e11, peaks={"int8": 2e14}
)


def test_measured_values_override_the_data_sheet_and_say_so(tmp_path):
    path = save_measured("l4", MEASURED, tmp_path / "h.json")
    device, sheet = find_device("l4", path), find_device("l4:datasheet", path)
    assert sheet == GPUS["l4"]
    assert (device.memory, device.bandwidth) == (23e9, 2.7e11)
    assert device.peak("int8") == 2e14
    assert device.peak("bf16") == sheet.peak("bf16")
    assert device.source("bandwidth") == "measured, doctor on NVIDIA L4, 2026-11-30"
    assert device.source("sms") == sheet.source("sms")
    assert (device.measured, sheet.measured) == (True, False)


def test_saving_keeps_other_devices_and_round_trips(tmp_path):
    path = tmp_path / "made" / "h.json"
    cpu = Measured("cpu", "doctor", threads=2, memory=8e9, bandwidth=2e10, peaks={"fp32": 1e11, "int8": 4e11})
    save_measured("l4", MEASURED, path)
    save_measured("cpu", cpu, path)
    assert read_measured(path) == {"l4": MEASURED, "cpu": cpu}
    assert [p.name for p in path.parent.iterdir()] == ["h.json"]


def test_cpu_is_known_by_measurement_only(tmp_path):
    with pytest.raises(UnknownDeviceError, match="run tessera doctor --save"):
        find_device("cpu", tmp_path / "none.json")
    cpu = Measured("cpu", "doctor", threads=2, memory=8e9, bandwidth=2e10, peaks={"fp32": 1e11, "int8": 4e11})
    device = find_device("cpu", save_measured("cpu", cpu, tmp_path / "h.json"))
    assert (device.kind, device.bandwidth, device.peak("bf16")) == ("cpu", 2e10, 1e11)
    assert device.issue_ceiling == 0


def test_incomplete_measurement_of_a_cpu_names_what_is_missing(tmp_path):
    path = save_measured("cpu", Measured("cpu", "doctor", bandwidth=2e10), tmp_path / "h.json")
    with pytest.raises(UnknownDeviceError, match="without memory, peaks"):
        find_device("cpu", path)


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "tessera doctor --save"),
        ("[]", "lacks version and devices"),
        ('{"version": 9, "devices": {}}', "version 9"),
        ('{"version": 1, "devices": {"l4": 3}}', "l4 is 3, not an object"),
        ('{"version": 1, "devices": {"l4": {"kind": "gpu"}}}', "l4: kind must be gpu or cpu, and source"),
        (
            '{"version": 1, "devices": {"l4": {"kind": "gpu", "source": "x", "speed": 1}}}',
            "unknown keys speed",
        ),
        (
            '{"version": 1, "devices": {"l4": {"kind": "gpu", "source": "x", "bandwidth": -1}}}',
            "bandwidth is -1, not a positive",
        ),
        (
            '{"version": 1, "devices": {"l4": {"kind": "gpu", "source": "x", "peaks": {"int9": 1}}}}',
            "peaks maps fp32",
        ),
        (
            '{"version": 1, "devices": {"l4": {"kind": "gpu", "source": "x", "peaks": {"int8": "fast"}}}}',
            "peaks.int8 is 'fast'",
        ),
    ],
)
def test_broken_hardware_files_are_named(tmp_path, text, message):
    path = tmp_path / "h.json"
    path.write_text(text)
    with pytest.raises(HardwareFileError, match=message) as error:
        find_device("l4", path)
    assert str(path) in str(error.value)


def test_unwritable_file_names_the_variable(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HardwareFileError, match="TESSERA_HARDWARE"):
        save_measured("l4", MEASURED, tmp_path / "file" / "h.json")


def test_the_variable_names_the_file(monkeypatch, tmp_path):
    path = save_measured("l4", MEASURED, tmp_path / "h.json")
    monkeypatch.setenv("TESSERA_HARDWARE", str(path))
    assert find_device("l4").bandwidth == 2.7e11


def test_shipped_measurement_of_the_h200_lies_below_its_data_sheet():
    sheet, device = find_device("h200:datasheet"), find_device("h200")
    assert shipped_measurements().keys() == {"h200"}
    assert 0.85 * sheet.bandwidth < device.bandwidth < sheet.bandwidth
    for kind in ("int8", "fp8", "bf16"):
        assert 0.5 * sheet.peak(kind) < device.peak(kind) < sheet.peak(kind)


def test_shipped_h200_is_what_the_probe_measured(request):
    rows = json.loads((request.config.rootpath / "benchmarks/results/probe_h200.json").read_text())["rows"]
    reads = [row["tbps"] for row in rows if row["op"].startswith("read") and row.get("mb", 0) > 100]
    streamed = [
        row["tops"]
        for row in rows
        if row["op"] == "stream_gemm" and (row["recipe"], row["m"], row["k"]) == ("w4a8-g128", 2048, 4096)
    ]
    device = find_device("h200")
    assert device.bandwidth == pytest.approx(1e12 * max(reads), rel=0.03)
    assert device.peak("int8") == pytest.approx(1e12 * max(streamed))


@pytest.mark.parametrize(
    "product, name",
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA Something", None),
    ],
)
def test_names_that_the_driver_gives(product, name):
    assert device_of_product(product) == name


def test_apply_measured_without_bandwidth_is_no_measured_device():
    device = apply_measured(GPUS["l4"], Measured("gpu", "x", peaks={"int8": 1e14}))
    assert not device.measured
    assert device.source("bandwidth") == GPUS["l4"].source("bandwidth")


def test_costs_of_kernels_ship_for_every_kind():
    costs = kernel_costs()
    assert costs.seconds.keys() == set(KINDS)
    assert costs.products.keys() == set(FAMILIES)
    assert "e2e_h200.json" in costs.source
    assert all(0 <= seconds < 1e-4 for seconds in costs.seconds.values())
    for products in costs.products.values():
        shares = (products.bandwidth, products.compute, products.prefill)
        assert all(0.3 < share <= 1 for share in shares)
        assert 0 <= products.exposed <= 1


def test_kernels_cost_multiples_of_the_device_s_and_all_the_same_on_a_processor():
    gpu = find_device("a100")
    assert relative_cost("attention", gpu) * KERNEL_SECONDS == kernel_costs().seconds["attention"]
    assert relative_cost("product:int8", gpu) * KERNEL_SECONDS == kernel_costs().products["int8"].seconds
    cpu = replace(gpu, kind="cpu")
    assert relative_cost("attention", cpu) == relative_cost("product:int8", cpu) == 1


def shipped_costs():
    costs = kernel_costs()
    products = {family: asdict(found) for family, found in costs.products.items()}
    return {"version": 1, "source": "", "date": "", "seconds": dict(costs.seconds), "products": products}


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw.pop("seconds"),
        lambda raw: raw["seconds"].pop("norm"),
        lambda raw: raw["seconds"].update(norm="2 us"),
        lambda raw: raw["seconds"].update(norm=-1e-6),
        lambda raw: raw["products"]["int8"].pop("filled"),
        lambda raw: raw["products"].pop("mixed"),
        lambda raw: raw.update(version=2),
    ],
)
def test_a_damaged_file_of_kernel_costs_is_named(tmp_path, damage):
    raw, path = shipped_costs(), tmp_path / "kernels.json"
    path.write_text(json.dumps(raw))
    assert read_kernel_costs(path).products == kernel_costs().products
    damage(raw)
    path.write_text(json.dumps(raw))
    with pytest.raises(HardwareFileError, match=r"kernels\.json"):
        read_kernel_costs(path)
