import subprocess
import sys

import pytest
import torch

from engine_fakes import FakeModel, expected_tokens, history_hash, logits_of, make_core
from tessera.engine.llm import LLM
from tessera.engine.request import FinishReason
from tessera.engine.sampling_params import SamplingParams
from tessera.errors import InvalidRequestError

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def make_llm(model=None, **options):
    return LLM.from_core(make_core(model, **options))


def test_prompts_in_any_form_and_outputs_in_their_order():
    llm = make_llm()
    text, ids = "some text", [4, 5, 6]
    expected = [expected_tokens(list(text.encode()), GREEDY), expected_tokens(ids, GREEDY)]
    both = llm.generate([text, ids], GREEDY)
    assert [list(output.token_ids) for output in both] == expected
    assert [output.prompt for output in both] == [text, None]
    assert [output.text for output in both] == [llm.tokenizer.decode(tokens) for tokens in expected]
    assert [output.finish_reason for output in both] == [FinishReason.LENGTH] * 2
    assert llm.generate(text, GREEDY)[0].token_ids == both[0].token_ids
    assert llm.generate(ids, GREEDY)[0].token_ids == both[1].token_ids
    assert llm.generate([], GREEDY) == []


def test_sampling_parameters_for_each_prompt():
    llm = make_llm()
    params = [GREEDY, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)]
    assert [len(output.token_ids) for output in llm.generate(["a", "b"], params)] == [6, 2]
    with pytest.raises(InvalidRequestError, match="2 sampling parameters for 3 prompts"):
        llm.generate(["a", "b", "c"], params)


def test_one_bad_prompt_is_reported_before_anything_runs():
    llm = make_llm()
    with pytest.raises(InvalidRequestError, match="context of 512"):
        llm.generate(["fine", [1] * 512], GREEDY)
    assert not llm.core.has_unfinished
    assert llm.core.runner.model.steps == []


def test_a_failing_step_leaves_nothing_behind():
    llm = make_llm(FakeModel(fail_after=3))
    with pytest.raises(RuntimeError, match="kernel exploded"):
        llm.generate(["a", "b"], GREEDY)
    assert not llm.core.has_unfinished
    llm.core.scheduler.check_integrity()


def test_streaming_equals_generating_and_can_be_left():
    llm = make_llm()
    deltas = list(llm.stream("text", GREEDY))
    assert "".join(delta.text for delta in deltas) == llm.generate("text", GREEDY)[0].text
    stream = llm.stream("text", GREEDY)
    next(stream)
    stream.close()
    assert not llm.core.has_unfinished
    with pytest.raises(InvalidRequestError):
        llm.stream([], GREEDY)


def test_chat_renders_the_template():
    llm = make_llm()
    chat = [{"role": "user", "content": "hi"}]
    (one,) = llm.chat(chat, GREEDY)
    assert bytes(one.prompt_token_ids).decode() == "user: hi\nassistant:"
    two = llm.chat([chat, chat], GREEDY)
    assert [output.token_ids for output in two] == [one.token_ids] * 2


@pytest.mark.parametrize("length", [1, 128, 300, 512])
def test_prompt_logits_are_those_of_every_position(length):
    llm = make_llm(max_num_batched_tokens=150)
    prompt = [n * 7 % 256 for n in range(length)]
    pieces = list(llm.prompt_logits(prompt))
    assert max(len(piece) for piece in pieces) <= 128
    expected = torch.stack([logits_of(history_hash(prompt[: n + 1])) for n in range(length)])
    assert torch.equal(torch.cat(pieces), expected)
    assert llm.core.scheduler.pool.num_free == 64


def test_prompt_logits_refuse_too_much_and_clean_up_when_left():
    llm = make_llm()
    with pytest.raises(InvalidRequestError, match="513 tokens, the context 512"):
        next(llm.prompt_logits([1] * 513))
    logits = llm.prompt_logits([1] * 300)
    next(logits)
    logits.close()
    assert llm.core.scheduler.pool.num_free == 64


def test_importing_the_package_and_the_async_engine_loads_no_torch():
    code = (
        "import sys, tessera, tessera.engine.async_engine, tessera.engine.core, tessera.engine.config;"
        "assert not {'torch', 'cuda'} & sys.modules.keys();"
        "assert tessera.SamplingParams(top_k=3).top_k == 3; assert 'torch' not in sys.modules;"
        "assert set(tessera.__all__) <= set(dir(tessera))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_attributes_of_the_package():
    import tessera

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tessera.nothing  # noqa: B018
