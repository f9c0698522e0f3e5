"""Talk to a running `tessera serve` with the official OpenAI client.

tessera serve model-qoq --port 8000
python examples/server_client.py http://127.0.0.1:8000/v1
"""

import sys

from openai import OpenAI


def main(url: str, api_key: str = "none") -> None:
    with OpenAI(base_url=url, api_key=api_key) as client:
        model = client.models.list().data[0].id
        messages = [{"role": "user", "content": "Name three primary colours."}]

        answer = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=48)
        print(answer.choices[0].message.content)
        print(answer.usage)

        stream = client.chat.completions.create(
            model=model, messages=messages, seed=1, max_tokens=48, stream=True, extra_body={"top_k": 40}
        )
        for chunk in stream:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()


if __name__ == "__main__":
    main(*sys.argv[1:])
