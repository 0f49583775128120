"""``python -m tools.retrieval build|search|serve``: indexes, from a command line."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time

from tools.retrieval.build import build_index
from tools.retrieval.dense import DenseModel, build_dense
from tools.retrieval.opening import open_retriever
from tools.retrieval.serve import serving
from tools.tool import ToolFailure


def main(words: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    arguments = _parser().parse_args(words)
    try:
        asyncio.run(arguments.run(arguments))
    except (ValueError, OSError, ToolFailure) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the same command goes on from here\n")
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.retrieval", description=__doc__)
    commands = parser.add_subparsers(required=True)
    build = commands.add_parser("build", help="index a corpus; go on with an interrupted index")
    build.add_argument("corpus", help=".jsonl, .jsonl.gz or .parquet, or a folder of them")
    build.add_argument("index", help="the folder where the index is to be")
    build.add_argument("--model", help="embed by this sentence-transformers model: a dense index")
    build.add_argument("--query-prefix", default="", help='of the model; E5: "query: "')
    build.add_argument("--passage-prefix", default="", help='of the model; E5: "passage: "')
    build.set_defaults(run=_build)
    search = commands.add_parser("search", help="show the best passages for a query")
    serve = commands.add_parser("serve", help="answer Search-R1, ReSearch and R1-Searcher clients")
    for command in (search, serve):
        command.add_argument("index", help="the folder of an index, or the address of a server")
        command.add_argument("--wire", default="search-r1", help="how a server is asked")
        command.add_argument("--topk", type=int, help="passages where nothing else is said")
    search.add_argument("query")
    search.set_defaults(run=_search)
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    serve.set_defaults(run=_serve)
    return parser


async def _build(arguments: argparse.Namespace) -> None:
    started = time.monotonic()

    def on_progress(done: int) -> None:
        seconds = time.monotonic() - started
        sys.stderr.write(f"{done:,} passages read, {seconds:.0f} s\n")

    corpus, index = arguments.corpus, arguments.index
    if arguments.model is None:
        count = build_index(corpus, index, on_progress=on_progress)
    else:
        prefixes = (arguments.query_prefix, arguments.passage_prefix)
        count = build_dense(
            corpus, index, DenseModel(arguments.model, *prefixes), on_progress=on_progress
        )
    sys.stdout.write(f"{arguments.index}: {count:,} passages\n")


async def _search(arguments: argparse.Namespace) -> None:
    async with open_retriever(arguments.index, wire=arguments.wire) as retriever:
        [found] = await retriever.search([arguments.query], arguments.topk or 5)
    for passage in found:
        title = f" ({passage.title})" if passage.title else ""
        sys.stdout.write(f"{passage.score:.3f} {passage.id}{title} {passage.text}\n")


async def _serve(arguments: argparse.Namespace) -> None:
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    async with (
        open_retriever(arguments.index, wire=arguments.wire) as retriever,
        serving(retriever, arguments.host, arguments.port, arguments.topk) as address,
    ):
        sys.stdout.write(f"{arguments.index} is served at {address}\n")
        sys.stdout.flush()
        await over.wait()


if __name__ == "__main__":
    sys.exit(main())
