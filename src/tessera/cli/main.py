"""The `tessera` command: registers the verbs and turns failures into one line and an exit code.

Verbs import what is heavy inside their functions, so that `tessera --help` loads neither torch nor a kernel.
"""

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from tessera.cli import console
from tessera.cli.bench import bench
from tessera.cli.chat import chat
from tessera.cli.compile import compile_app
from tessera.cli.doctor import doctor
from tessera.cli.eval import evaluate
from tessera.cli.plan import EXAMPLE as PLAN_EXAMPLE
from tessera.cli.plan import run as plan
from tessera.cli.quantize import quantize
from tessera.cli.serve import serve
from tessera.errors import InvalidRequestError, TesseraError
from tessera.version import __version__

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

app = typer.Typer(
    name="tessera",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

VERBS: Final[dict[str, tuple[Callable[..., Any] | typer.Typer, str]]] = {
    "plan": (plan, PLAN_EXAMPLE),
    "quantize": (quantize, "tessera quantize model.gguf -o out --recipe qoq-g64"),
    "eval": (evaluate, "tessera eval out --reference model.gguf --text text.txt"),
    "serve": (serve, "tessera serve out --port 8000"),
    "chat": (chat, "tessera chat out --system 'Answer in one sentence.'"),
    "bench": (bench, "tessera bench throughput out --case 1x512x64"),
    "compile": (compile_app, "tessera compile explain w4a16-g128 --m 1 --n 4096 --k 4096 --device h200"),
    "doctor": (doctor, "tessera doctor --save"),
}


def _print_version(asked: bool) -> None:
    if asked:
        print(f"tessera {__version__}")
        raise typer.Exit


@app.callback(epilog="Example: tessera quantize model.gguf -o out --recipe qoq-g64 && tessera serve out")
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Quantize a language model to W4A8KV4, compile kernels for exactly that format, and serve it."""


for _name, (_verb, _example) in VERBS.items():
    if isinstance(_verb, typer.Typer):
        app.add_typer(_verb, name=_name, epilog=f"Example: {_example}")
    else:
        app.command(_name, epilog=f"Example: {_example}")(_verb)


def main() -> None:
    """Entry point. Exit code 2 for what the caller got wrong, 1 for every other failure, never a traceback.

    `TESSERA_DEBUG=1` lets the exception through.
    """
    if os.environ.get("TESSERA_DEBUG") == "1":
        app()
        return
    try:
        app()
    except InvalidRequestError as error:
        console.fail(str(error))
        sys.exit(EXIT_USAGE)
    except (TesseraError, OSError) as error:
        console.fail(str(error))
        sys.exit(EXIT_FAILED)
    except Exception as error:
        console.fail(
            f"unexpected {type(error).__name__}: {error}\n"
            "This is a bug in tessera; TESSERA_DEBUG=1 shows the traceback."
        )
        sys.exit(EXIT_FAILED)
