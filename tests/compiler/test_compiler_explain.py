"""The explanation of a layer, and its picture."""

import json
from xml.etree import ElementTree

import pytest

from tessera.compiler import program, spec
from tessera.compiler.errors import BindError
from tessera.compiler.explain import explain, explain_graph, reason
from tessera.compiler.picture import side_by_side
from tessera.hardware import GPUS
from tessera.spec import F16

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module", params=[("w4a16-g128", 1), ("qoq-g128", 64), ("nf4-g64", 8), ("w8a8", 16)])
def explained(request):
    name, m = request.param
    return explain(name, m, 512, 1024, GPUS["h200"])


def test_it_proves_ranks_and_gives_reasons(explained):
    e = explained
    assert e.proved
    assert len(e.prices) == len(e.search.candidates) == len(e.verdicts)
    assert e.winner.seconds <= e.eager.seconds * 1.005
    assert e.spans[0].first == 1
    assert e.spans[-1].last == 4096
    text = " ".join(reason(e))
    assert f"At m = {e.m}" in text
    assert " us, bound by " in text


def test_it_is_plain_data(explained):
    data = json.loads(json.dumps(explained.to_json()))
    assert data["recipe"] == explained.name
    assert data["proved"] is True
    assert len(data["candidates"]) == len(explained.prices)
    assert {"us", "bytes", "weight", "output", "places", "rows"} <= data["candidates"][0].keys()
    assert data["winners"][0]["from"] == 1


def test_reasons_name_the_break_even():
    e = explain("w4a16-g128", 1, 4096, 4096, GPUS["h200"])
    assert any("wins up to m = 63" in line for line in reason(e))
    e = explain("nf4-g64", 1, 512, 512, GPUS["h200"])
    assert any("lookup is not linear" in str(r) for r in e.search.refusals)


def test_the_picture_is_svg_with_every_step_and_no_overlap(explained):
    root = ElementTree.fromstring(side_by_side(explained))
    texts = [t.text for t in root.iter(f"{SVG}text")]
    assert any(t.startswith("eager:") for t in texts)
    assert any(t.startswith("winner:") for t in texts)
    products = [t for t in texts if t.startswith("matrix product")]
    assert len(products) >= 2
    for place in {p.place.value for p in explained.winner.materialised.placed}:
        assert place in texts
    for panel in root.findall(f"{SVG}g"):
        frame, *boxes = [_rectangle(r) for r in panel.findall(f"{SVG}rect")]
        for i, box in enumerate(boxes):
            assert frame[0] <= box[0]
            assert box[2] <= frame[2]
            assert box[3] <= frame[3]
            assert not any(_overlap(box, other) for other in boxes[i + 1 :])


def _rectangle(r):
    x, y, w, h = (float(r.get(a, 0)) for a in ("x", "y", "width", "height"))
    return x, y, x + w, y + h


def _overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def test_a_product_of_constants_is_drawn_as_one_constant():
    fixed = spec(8, 8, dtype=F16, constant=True)
    graph = program(lambda x, a, b: x @ (a @ b), x=spec("m", 8, dtype=F16), a=fixed, b=fixed)
    root = ElementTree.fromstring(side_by_side(explain_graph("folded", graph, 2, GPUS["h200"])))
    texts = [t.text for t in root.iter(f"{SVG}text")]
    assert texts.count("matrix product, fp16") == 2  # one a panel
    assert "a·b" in texts


def test_a_program_without_tokens_has_no_price_over_them():
    graph = program(lambda x: x + x, x=spec(3, 8, dtype=F16))
    with pytest.raises(BindError, match="no axis m"):
        explain_graph("fixed", graph, 4, GPUS["h200"])
