"""No request body makes the server fail, or forget how to answer."""

import subprocess
import sys

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessera.server.protocol import ChatRequest, CompletionRequest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
PLAUSIBLE = {
    "prompt": st.text(max_size=20) | st.lists(st.integers(-2, 260), max_size=5) | JSON,
    "messages": st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": st.text() | JSON}))
    | JSON,
    "max_tokens": st.integers(-1, 40) | JSON,
    "temperature": st.floats(-1, 3) | JSON,
    "top_p": st.floats(-1, 2) | JSON,
    "n": st.integers(-1, 20) | JSON,
    "stop": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=3) | JSON,
    "stream": st.booleans() | JSON,
}


def bodies(request):
    """Bodies with some of the endpoint's fields, each plausible or anything, and perhaps one unknown."""
    names = sorted(request.model_fields)
    fields = {name: PLAUSIBLE.get(name, JSON) for name in names}
    required = {n: fields.pop(n) for n in names if request.model_fields[n].is_required()}
    known = st.fixed_dictionaries(required, optional=fields)
    return st.builds(dict.__or__, known, st.dictionaries(st.text(), JSON, max_size=1)) | JSON


FUZZ = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(body=bodies(CompletionRequest))
def test_completions(live, body):
    assert live.http.post("/v1/completions", json=body).status_code in (200, 400, 404)


@FUZZ
@given(body=bodies(ChatRequest))
def test_chat_completions(live, body):
    assert live.http.post("/v1/chat/completions", json=body).status_code in (200, 400, 404)


def test_the_server_never_imports_torch():
    code = "import sys, tessera.server.run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
