"""`python client.py SCRIPT WORD...` runs a script through the server at `WARM_SERVER`, in this process' streams and directory,
and ends as the script does."""

import json
import os
import socket
import sys
from typing import Any


def ask(path: str, request: dict[str, Any], streams: tuple[int, int, int]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        data = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(connection, [data], streams)
        connection.sendall(data[sent:])
        with connection.makefile() as answers:
            answer: dict[str, Any] = json.loads(answers.readline())
            return answer


if __name__ == "__main__":
    request = {"script": sys.argv[1], "words": sys.argv[2:], "cwd": os.getcwd(), "environment": dict(os.environ)}
    answer = ask(os.environ["WARM_SERVER"], request, (0, 1, 2))
    if answer["signal"]:
        os.kill(os.getpid(), answer["signal"])
    sys.exit(answer["code"])
