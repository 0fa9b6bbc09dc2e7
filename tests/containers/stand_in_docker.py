"""A docker daemon, client and toolkit for a container without one: it answers what the doctor asks, no more.

``install`` puts the programs in place; ``serve`` is the daemon: it reads /etc/docker/daemon.json at its start and
on SIGHUP, as dockerd does for runtimes. Real daemons are tested in test_fix_daemon.py; this one is for the whole
way of the commands inside a container. Runs with the container's plain Python.
"""

import http.server
import json
import os
import signal
import socketserver
import sys

SOCKET = "/var/run/docker.sock"
CONFIG = "/etc/docker/daemon.json"
HERE = os.path.abspath(__file__)
PROGRAMS = {
    "docker": f'exec python3 {HERE} client "$@"',
    "dockerd": f'exec python3 {HERE} validate "$@"',
    "nvidia-ctk": "echo NVIDIA Container Toolkit CLI version 1.18.0",
    "kill": 'kill "$@"',  # Debian's minimal images have only the shell's own
}


def runtimes():
    with open(CONFIG, encoding="utf-8") as file:
        document = json.load(file)
    return {"runc": {"path": "runc"}, **document.get("runtimes", {})}, document.get("default-runtime", "runc")


def serve():
    state = {"known": runtimes()}

    def reload(*_):
        state["known"] = runtimes()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            known, default = state["known"]
            if self.path.endswith("/info"):
                answer = {"ServerVersion": "28.5.1", "Runtimes": known, "DefaultRuntime": default}
            else:
                answer = {"Version": "28.5.1", "ApiVersion": "1.47"}
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

        def address_string(self):
            return "local"

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    signal.signal(signal.SIGHUP, reload)
    with open("/run/docker.pid", "w", encoding="ascii") as file:
        file.write(str(os.getpid()))
    Server(SOCKET, Handler).serve_forever()


def client(arguments):
    import http.client
    import socket

    class Connection(http.client.HTTPConnection):
        def connect(self):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.connect(SOCKET)

    if "info" not in arguments:
        return
    connection = Connection("localhost")
    connection.request("GET", "/info")
    info = json.load(connection.getresponse())
    shown = {"{{json .Runtimes}}": json.dumps(info["Runtimes"]), "{{.LiveRestoreEnabled}}": "false"}
    print(shown[arguments[-1]])


def install():
    for name, line in PROGRAMS.items():
        path = f"/usr/local/bin/{name}"
        with open(path, "w", encoding="ascii") as file:
            file.write(f"#!/bin/sh\n{line}\n")
        os.chmod(path, 0o755)


if __name__ == "__main__":
    what = sys.argv[1]
    if what == "serve":
        serve()
    elif what == "client":
        client(sys.argv[2:])
    elif what == "validate":
        with open(sys.argv[-1], encoding="utf-8") as candidate:
            json.load(candidate)
    else:
        install()
