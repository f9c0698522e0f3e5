"""`tessera chat`: a conversation in the terminal."""

import sys
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tessera.cli import console
from tessera.engine.sampling_params import SamplingParams
from tessera.errors import InvalidRequestError

if TYPE_CHECKING:
    from tessera.engine.llm import LLM, Message

HELP: Final = "/reset forgets the conversation, /exit (or Ctrl-D) ends it, Ctrl-C stops an answer"


class Conversation:
    """Messages so far; each answer is generated with all of them as context."""

    def __init__(self, llm: "LLM", sampling: SamplingParams, system: str | None = None) -> None:
        self._llm = llm
        self._sampling = sampling
        self._system = system
        self.num_answer_tokens = 0
        self.messages: list[Message] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = [] if self._system is None else [{"role": "system", "content": self._system}]

    def answer(self, text: str) -> Generator[str, None, None]:
        """Pieces of the assistant's answer to `text`; what was said is remembered even if left early.

        Raises InvalidRequestError, with the conversation as it was before, if the context is full.
        """
        self.messages.append({"role": "user", "content": text})
        self.num_answer_tokens = 0
        pieces: list[str] = []
        try:
            for delta in self._llm.stream(self._llm.chat_ids(self.messages), self._sampling):
                self.num_answer_tokens = delta.num_output_tokens
                pieces.append(delta.text)
                yield delta.text
        except InvalidRequestError:
            self.messages.pop()
            raise
        finally:
            if pieces:
                self.messages.append({"role": "assistant", "content": "".join(pieces)})


def chat(
    model: Annotated[str, typer.Argument(help="Checkpoint directory, GGUF file or Hugging Face id.")],
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="Answer this one message and exit.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 512,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.7,
    top_k: Annotated[int, typer.Option(help="Keep the k most probable tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the most probable tokens up to this sum.")] = 0.95,
    seed: Annotated[int | None, typer.Option(help="Makes answers repeatable.")] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest conversation, in tokens; default: the model's.")
    ] = None,
    kv_bits: Annotated[
        int | None, typer.Option(help="Bits of the KV cache, 4 or 16; default: what the checkpoint says.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Talk to a model in the terminal."""
    from tessera.engine.llm import LLM

    sampling = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
    )
    llm = LLM(model, device=device, max_model_len=max_model_len, max_num_seqs=1, kv_bits=kv_bits, seed=seed)
    for note in llm.info.notes:
        console.note(note)
    conversation = Conversation(llm, sampling, system)
    if prompt is not None:
        _show(conversation, prompt)
        return
    console.note(HELP)
    _converse(conversation)


def _converse(conversation: Conversation) -> None:
    while True:
        try:
            text = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if text == "/exit":
            return
        if text == "/reset":
            conversation.reset()
        elif text.startswith("/"):
            console.note(HELP)
        elif text:
            try:
                _show(conversation, text)
            except InvalidRequestError as error:
                console.warn(f"{error}; /reset starts over")


def _show(conversation: Conversation, text: str) -> None:
    """Print the answer as it comes, then how fast it came."""
    start = time.monotonic()
    first: float | None = None
    answer = conversation.answer(text)
    try:
        for piece in answer:
            first = first or time.monotonic()
            sys.stdout.write(piece)
            sys.stdout.flush()
    except KeyboardInterrupt:
        answer.close()
    print()
    count = conversation.num_answer_tokens
    if first is not None and count > 1:
        rate = (count - 1) / (time.monotonic() - first)
        console.note(f"{count} tokens, first after {first - start:.2f} s, then {rate:.1f} a second")
