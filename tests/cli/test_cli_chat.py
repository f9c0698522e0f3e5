import pytest
import typer
from typer.testing import CliRunner

from engine_fakes import make_core
from tessera.cli import chat as chat_module
from tessera.cli.chat import Conversation, chat
from tessera.engine import llm as llm_module
from tessera.engine.llm import LLM
from tessera.engine.sampling_params import SamplingParams
from tessera.errors import InvalidRequestError

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def make_llm(**options):
    return LLM.from_core(make_core(**options))


def test_answers_become_part_of_the_conversation():
    llm = make_llm()
    conversation = Conversation(llm, GREEDY, system="be brief")
    first = "".join(conversation.answer("hi"))
    assert conversation.num_answer_tokens == 8
    assert [message["role"] for message in conversation.messages] == ["system", "user", "assistant"]
    (again,) = llm.chat(conversation.messages[:2], GREEDY)
    assert again.text == first == conversation.messages[2]["content"]
    conversation.reset()
    assert conversation.messages == [{"role": "system", "content": "be brief"}]


def test_an_answer_left_early_is_remembered_as_far_as_it_came():
    llm = make_llm()
    conversation = Conversation(llm, GREEDY)
    answer = conversation.answer("hi")
    shown = next(answer)
    answer.close()
    assert conversation.messages[-1] == {"role": "assistant", "content": shown}
    assert not llm.core.has_unfinished


def test_a_full_context_leaves_the_conversation_as_it_was():
    conversation = Conversation(make_llm(max_model_len=64), GREEDY)
    with pytest.raises(InvalidRequestError, match="context of 64"):
        list(conversation.answer("x" * 80))
    assert conversation.messages == []
    assert list(conversation.answer("x"))


@pytest.fixture
def run(monkeypatch):
    """Runs `chat` with a fake model; returns its result."""
    monkeypatch.setattr(llm_module, "build_core", lambda *_: make_core())
    app = typer.Typer()
    app.command()(chat)
    return lambda *arguments, text="": CliRunner().invoke(app, [*arguments], input=text)


def test_one_message_from_the_command_line(run):
    result = run("model", "--prompt", "hi", "--temperature", "0", "--max-tokens", "8")
    (expected,) = make_llm().chat(
        [{"role": "user", "content": "hi"}], SamplingParams(temperature=0, max_tokens=8)
    )
    assert result.exit_code == 0
    assert result.stdout == expected.text + "\n"


def test_a_session_with_commands(run, monkeypatch):
    asked = []
    monkeypatch.setattr(chat_module, "_show", lambda conversation, text: asked.append(text))
    result = run("model", text="one\n\n/what\n/reset\ntwo\n/exit\nthree\n")
    assert result.exit_code == 0
    assert asked == ["one", "two"]
    assert "/reset forgets" in result.stderr
    assert run("model", text="four\n").exit_code == 0  # end of input ends it
    assert asked[-1] == "four"


def test_a_full_context_is_a_warning_and_the_session_goes_on(run):
    text = "x" * 600 + "\nhi\n/exit\n"
    result = run("model", "--temperature", "0", "--max-tokens", "2", text=text)
    (expected,) = make_llm().chat(
        [{"role": "user", "content": "hi"}], SamplingParams(temperature=0, max_tokens=2)
    )
    assert result.exit_code == 0
    assert "/reset starts over" in result.stderr
    assert expected.text in result.stdout
